"""What models take beside their weights while they run on a recipe's data: activations, from above.

Nothing is loaded for it: sizes come from headers and configs, lengths from the texts where they lie here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transship.checkpoints.footprint import Footprint
from transship.errors import TransshipError
from transship.numerics import TORCH
from transship.verbs.merge.protocol import LearnedMethod, RecipeMethod
from transship.verbs.merge.recipe.plan.models import Models, StoredModel
from transship.verbs.merge.recipe.plan.words import vocabulary_file
from transship.verbs.merge.recipe.read.schema import Recipe
from transship.verbs.merge.recipe.read.sources import DataRule

TRIAL_BATCH, HEAD_BATCH = 32, 64  # inputs per forward pass of `weights: auto`, and of heads that are fitted
TRIED = 32  # texts that are counted: characters say roughly which ones have the most tokens


@dataclass(frozen=True)
class Pass:
    """One way in which models run over their inputs.

    Attributes:
        batch: inputs at once.
        all_blocks: whether what all blocks make of them waits in memory; else that of one block.
    """

    batch: int
    all_blocks: bool = False


def learning_bytes(
    recipe: Recipe,
    method: RecipeMethod | None,
    models: Models,
    elements: int,
    merged: int,
) -> int:
    """Return the memory of whole models that run before anything is written.

    Args:
        recipe: says what runs.
        method: of the recipe, with its parameters.
        models: of the recipe, with their data.
        elements: of the output.
        merged: how many models are merged.
    """
    learns = method if isinstance(method, LearnedMethod) else None
    if learns is not None:
        held = learns.held
    elif recipe.weights is not None:
        held = (2.0, 1.0)
    elif recipe.fits_heads:
        held = (3.0, 0.0)  # the merged tensors, and one model with its own
    else:
        return 0
    passes = [Pass(learns.at_once, learns.all_blocks)] if learns is not None else []
    passes += [Pass(TRIAL_BATCH)] if recipe.weights is not None else []
    passes += [Pass(HEAD_BATCH)] if recipe.fits_heads else []
    activations = [
        activation_bytes(model.model, rule, passes)
        for reference, model in models.items()
        if isinstance(model.model, StoredModel) and (rule := recipe.data_of(reference))
    ]
    return TORCH + int(4 * elements * (held[0] + merged * held[1])) + max(activations, default=0)


def activation_bytes(model: StoredModel, rule: DataRule, passes: Sequence[Pass]) -> int:
    """Return the most bytes that one batch of a model's data takes on its way, in any of the passes."""
    sizes, tokens = Footprint.of(model.checkpoint), most_tokens(model.folder, rule)
    return max(
        sizes.forward(each.batch, tokens) * (sizes.layers if each.all_blocks else 1) for each in passes
    )


def most_tokens(folder: Path | None, rule: DataRule) -> int | None:
    """Return the tokens of the longest text of some data.

    None for other inputs, and where the data is not here: then the model's own limit holds.
    """
    texts = _texts(rule)
    if not texts:
        return None
    longest = sorted(texts, key=len)[-TRIED:]
    path = vocabulary_file(folder)
    if path is None or path.name != "tokenizer.json":
        return max(len(text.encode()) for text in longest) + 2  # no tokenizer makes more of it
    import tokenizers

    tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    return max(len(encoding.ids) for encoding in tokenizer.encode_batch(longest)) + 2


def _texts(rule: DataRule) -> list[str]:
    """Return the texts, or pairs as one text; none where it is other data, or data that is not here."""
    from transship.data import load
    from transship.data.locate import data_files

    if rule.path is None or not data_files(rule.path):
        return []
    given: dict[str, Any] = {"column": rule.column, "pair": rule.pair, "split": rule.split, "label": False}
    try:
        data = load(rule.path, rule.kind, split_column=rule.split_column, config=rule.config, **given)  # type: ignore[arg-type]
    except TransshipError:
        return []  # the run will say what is wrong with it
    if data.kind == "text":
        return list(data.inputs)
    return [" ".join(pair) for pair in data.inputs] if data.kind == "pair" else []
