"""What models take beside their weights while they run on a recipe's data: activations, from above.

Nothing is loaded for it: sizes come from headers and configs, lengths from the texts where they lie here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transship.checkpoints.footprint import Footprint
from transship.errors import TransshipError
from transship.verbs.merge.recipe.models import StoredModel
from transship.verbs.merge.recipe.tokenizers import vocabulary_file

if TYPE_CHECKING:
    from transship.verbs.merge.recipe.inputs import DataRule

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


def activation_bytes(model: StoredModel, rule: DataRule, passes: Sequence[Pass]) -> int:
    """Return the most bytes that one batch of a model's data takes on its way, in any of the passes."""
    sizes, tokens = Footprint.of(model.checkpoint), most_tokens(model.folder, rule)
    return max(sizes.forward(one.batch, tokens) * (sizes.layers if one.all_blocks else 1) for one in passes)


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

    made: Any = tokenizers.Tokenizer.from_file(str(path))
    made.no_truncation()
    return max(len(one.ids) for one in made.encode_batch(longest)) + 2


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
