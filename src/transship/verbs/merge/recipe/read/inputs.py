"""The data of a recipe: which inputs each model is run on, and how `weights: auto` uses them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from transship.registry import unknown
from transship.verbs.merge.recipe.read.document import Block

KINDS = ("text", "pair", "image", "array", "series", "vector")
_TEXTS = ("path", "kind", "column", "label", "pair", "split", "split_column", "config")
KEYS = (*_TEXTS, "inputs")
OBJECTIVES = ("outputs", "entropy", "agreement")
SEARCH_KEYS = ("search", "rounds")


@dataclass(frozen=True)
class DataRule:
    """What a recipe says of the data of one model, or of all of them.

    Attributes:
        path: a path, a name in the data folders, or a hub id; None where only defaults are given.
        kind: of data; None finds it out.
        column: of the inputs.
        label: the column of classes, for methods that need them.
        pair: the second column of texts.
        split: which rows; `train` by default where the data has splits.
        split_column: where the rows' splits are.
        config: of a hub data set.
        inputs: at most so many rows, drawn by the recipe's seed.
        where: file and line, for errors.
    """

    path: str | None = None
    kind: str | None = None
    column: str | None = None
    label: str | None = None
    pair: str | None = None
    split: str | None = None
    split_column: str | None = None
    config: str | None = None
    inputs: int | None = None
    where: str = ""

    def over(self, defaults: DataRule | None) -> DataRule:
        """Return this rule with what it does not say taken from `defaults`."""
        if defaults is None:
            return self
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return replace(defaults, **fields)


@dataclass(frozen=True)
class WeightSearch:
    """How `weights: auto` chooses the weights.

    Attributes:
        search: what is made small on unlabelled inputs: `outputs`, the distance of the merged model's answers
            to those of each task's own model; `entropy` of the answers; `agreement`, the share of inputs
            whose class is another than that of the task's own model.
        rounds: over all models, each with two trials.
        where: file and line, for errors.
    """

    search: str = "outputs"
    rounds: int = 3
    where: str = ""


def read_data(parent: Block, key: str = "data", *, path: bool = True) -> DataRule | None:
    """Return the rule at `parent[key]`: a reference as text, or a mapping; None where there is none."""
    value = parent.get(key)
    if value is None:
        return None
    if isinstance(value, str) and path:
        return DataRule(path=value, where=parent.where(key))
    if not isinstance(value, Block):
        fix = "write data: reviews.parquet, or data: {path: …, column: …}"
        raise parent.error("data is a path, a name or a mapping", fix, key=key)
    value.expect(KEYS if path else KEYS[1:], "data")
    rule = DataRule(
        **{name: _text(value, name) for name in _TEXTS},
        inputs=_count(value, "inputs"),
        where=value.where(),
    )
    if path and rule.path is None:
        raise value.error("the data has no path", "add path: with a file, a name or a hub id")
    if rule.kind is not None and rule.kind not in KINDS:
        raise unknown(rule.kind, KINDS, kind="kind of data", where=value.where("kind"))
    if rule.split is not None and rule.split.strip().lower() in ("test", "testing"):
        raise value.error(
            "a merge that has read the test inputs cannot be judged by them",
            "use split: train or validation",
            key="split",
        )
    return rule


def read_search(parent: Block) -> WeightSearch | None:
    """Return the rule at `weights`: `auto`, or a mapping; None where the recipe gives the weights itself."""
    value: Any = parent.get("weights")
    if value is None:
        return None
    if value == "auto":
        return WeightSearch(where=parent.where("weights"))
    if not isinstance(value, Block):
        raise parent.error(
            f"weights is {value!r}",
            "write weights: auto, or give each model parameters: {weight: …}",
            key="weights",
        )
    value.expect(SEARCH_KEYS, "weights")
    search = value.get("search", OBJECTIVES[0])
    if search not in OBJECTIVES:
        raise unknown(str(search), OBJECTIVES, kind="search", where=value.where("search"))
    return WeightSearch(str(search), _count(value, "rounds") or WeightSearch.rounds, value.where())


def _text(block: Block, key: str) -> str | None:
    value = block.get(key)
    if value is not None and not isinstance(value, str):
        raise block.error(f"{key} takes a text", f"write {key}: as text", key=key)
    return value


def _count(block: Block, key: str) -> int | None:
    value = block.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise block.error(f"{key} takes a whole number from 1", f"write {key}: 256", key=key)
    return value
