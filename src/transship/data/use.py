"""What rows may be used for, and which label is which: one rule for every verb.

Rows are fitted on, chosen by, or measured on. Splits say which are which, and no row plays two parts: what is
fitted on is never a test row, and what is measured on was used for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transship.data.dataset import Dataset
from transship.data.rows import row_digest
from transship.errors import DataError
from transship.numerics import derive_seed

# more distinct targets than this, and than a quarter of the rows, are no classes
_MOST_CLASSES = 20
# names that a config has when nobody gave any
_UNNAMED = re.compile(r"(LABEL_)?\d+")


def rows_to_fit(data: Dataset, *, validation: bool = False) -> Dataset:
    """Return the rows that may be fitted on: those of `train`, or all where there are no splits.

    Without a `train` split these are the rows of neither `test` nor `validation`. Where none are left, the
    rows of `validation` serve if `validation` allows it, because nothing is chosen by them.
    """
    if data.splits is None:
        return data
    if "train" in data.split_sizes:
        return data.split("train")
    others = ~np.isin(data.splits, ["test", "validation"])
    if others.any():
        return data.subset(others)
    if validation and "validation" in data.split_sizes:
        return data.split("validation")
    raise DataError(
        f"it has only {' and '.join(data.split_sizes)} rows, and nothing is fitted on those",
        where=data.name,
        fix="give the training data",
    )


def rows_to_choose(data: Dataset) -> Dataset | None:
    """Return the labelled rows of the `validation` split, or None."""
    if data.labels is None or "validation" not in data.split_sizes:
        return None
    return data.split("validation")


def rows_to_measure(data: Dataset) -> Dataset | None:
    """Return the rows of `test`, else of `validation`; None where the data has neither."""
    held_back = [name for name in ("test", "validation") if name in data.split_sizes]
    return data.split(held_back[0]) if held_back else None


def unused_rows(data: Dataset, used: Iterable[Sequence[Any]]) -> NDArray[np.int64]:
    """Return the numbers of the rows whose content is none of `used`."""
    digests = {row_digest(rows, row) for rows in used for row in range(len(rows))}
    fresh = [row for row in range(len(data)) if row_digest(data.inputs, row) not in digests]
    return np.array(fresh, dtype=np.int64)


def distinct_rows(data: Dataset, used: Iterable[Sequence[Any]]) -> NDArray[np.int64]:
    """Return the numbers of the first rows of each content that is none of `used`."""
    seen = {row_digest(rows, row) for rows in used for row in range(len(rows))}
    fresh = []
    for row in range(len(data)):
        digest = row_digest(data.inputs, row)
        if digest not in seen:
            seen.add(digest)
            fresh.append(row)
    return np.array(fresh, dtype=np.int64)


def held_out(targets: NDArray[Any], share: float, seed: int) -> NDArray[np.int64]:
    """Return the numbers of rows to choose by: a share of all, drawn by seed.

    Classes are cut at the share each. A class of one row is only learnt from.
    """
    generator = np.random.default_rng(derive_seed(seed, "validation"))
    values, counts = np.unique(targets, return_counts=True) if targets.ndim == 1 else (targets, np.empty(0))
    chosen: list[int] = []
    if targets.ndim == 1 and len(values) <= max(_MOST_CLASSES, len(targets) // 4):
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            rows = generator.permutation(np.flatnonzero(targets == value))
            chosen += rows[: min(count - 1, max(1, round(share * count)))].tolist()
    if not chosen:
        chosen = generator.permutation(len(targets))[: max(1, round(share * len(targets)))].tolist()
    return np.sort(np.array(chosen, dtype=np.int64))


def match_labels(
    names: Sequence[str], others: Sequence[str], who: str, *, width: int | None = None, partly: bool = False
) -> NDArray[np.int64] | str:
    """Return the number among `others` of each class in `names`, or why they are not the same classes.

    Classes meet by name where both sides have names, whatever their order, case, spaces and hyphens. Where
    one side has none (`LABEL_0`, `1`), they meet by number, and there must be equally many.

    Args:
        names: the classes of data.
        others: the classes that a model, or other data, numbers.
        who: the other side, for messages: `the fine-tune`.
        width: how many classes the other side has, where its names do not say.
        partly: data whose classes have no names may have fewer of them: they are those of their numbers, or
            the first ones where numbers go beyond the other side's.
    """
    width = len(others) if width is None else width
    if unnamed(names) or unnamed(others):
        if len(names) == width:
            return np.arange(len(names))
        if partly and unnamed(names) and len(names) < width:
            numbers = np.array([int(name.removeprefix("LABEL_")) for name in names], dtype=np.int64)
            return numbers if len(numbers) and numbers.max() < width else np.arange(len(names))
        return f"the data has {len(names)} classes and {who} {width}"
    places = {_plain(name): number for number, name in enumerate(others)}
    missing = [name for name in names if _plain(name) not in places]
    if missing:
        return f"{who} has no class '{missing[0]}'"
    return np.array([places[_plain(name)] for name in names], dtype=np.int64)


def unnamed(names: Sequence[str]) -> bool:
    """Return whether classes have no names but their numbers."""
    return all(_UNNAMED.fullmatch(name) for name in names)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())
