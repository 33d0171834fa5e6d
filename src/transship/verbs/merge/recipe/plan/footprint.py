"""What models take beside their weights while they run on a recipe's data: activations, from above.

Nothing is loaded for it: sizes come from headers and configs, lengths from the texts where they lie here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transship as ts
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


def learning_bytes(
    recipe: Recipe, method: RecipeMethod | None, models: Models, elements: int, merged: int
) -> int:
    """Return the memory of whole models that run before anything is written.

    Args:
        recipe: says what runs.
        method: of the recipe, with its parameters.
        models: of the recipe, with their data.
        elements: of the output.
        merged: how many models are merged.
    """
    # float32 copies, and more for each model; inputs at once, and whether what all blocks make of them waits
    held, passes = (0.0, 0.0), []
    if recipe.fits_heads:
        held = (3.0, 0.0)  # the merged tensors, and one model with its own
        passes.append((HEAD_BATCH, False))
    if recipe.weights is not None:
        held = (2.0, 1.0)
        passes.append((TRIAL_BATCH, False))
    if isinstance(method, LearnedMethod):
        held = method.held
        passes.append((method.at_once, method.all_blocks))
    activations = []
    for reference, aligned in models.items():
        model, rule = aligned.model, recipe.data_of(reference)
        if isinstance(model, StoredModel) and rule is not None:
            sizes, tokens = Footprint.of(model.checkpoint), most_tokens(model.folder, rule)
            activations += [
                sizes.forward(batch, tokens) * (sizes.layers if all_blocks else 1)
                for batch, all_blocks in passes
            ]
    return TORCH + int(4 * elements * (held[0] + merged * held[1])) + max(activations, default=0)


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
    if rule.path is None or not ts.data.data_files(rule.path):
        return []
    try:
        data = rule.load()
    except TransshipError:
        return []  # the run will say what is wrong with it
    if data.kind == "text":
        return list(data.inputs)
    return [" ".join(pair) for pair in data.inputs] if data.kind == "pair" else []
