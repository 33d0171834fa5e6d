"""Data sets as arrays: what is learned from, and what is chosen by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from transship import data
from transship.data import Dataset
from transship.errors import DataError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs and targets of a data set, as the estimator takes them."""

    inputs: Array
    targets: Array | None
    ids: Array
    name: str


def read_rows(
    reference: Any,
    *,
    kind: str = "auto",
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
    needs_targets: bool = True,
) -> tuple[Rows, Dataset]:
    """Read a data set as arrays: series, arrays, vectors, or images as [rows, channels, height, width]."""
    asked: Any = {"series": "series", "tabular": "array", "tokens": "array", "grid": None}.get(kind)
    found = data.load(reference, asked, column=column, label=label)
    if split is not None and found.splits is not None:
        found = found.split(split)
    if found.kind in ("text", "pair"):
        raise DataError(
            f"it holds {found.kind}, which the backbone reads already",
            where=found.name,
            fix="give series, arrays or images, or name their column with --column",
        )
    if needs_targets and found.labels is None:
        raise DataError("it has no targets", where=found.name, fix="name their column with --label")
    return Rows(_arrays(found), _named(found), found.ids, found.name), found


def _arrays(found: Dataset) -> Array:
    if found.kind != "image":
        return np.asarray(found.inputs)
    pictures = [np.asarray(found.inputs[row], dtype=np.float32) / 255.0 for row in range(len(found))]
    shapes = {picture.shape for picture in pictures}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise DataError(
            f"its images have several sizes ({first} and {second} among them)",
            where=found.name,
            fix="give one size",
        )
    stacked = np.stack(pictures)
    return stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)


def _named(found: Dataset) -> Array | None:
    """Return targets; classes by their names, so that train and test agree whatever their codes are."""
    if found.labels is None or not found.label_names:
        return found.labels
    names: Array = np.asarray(found.label_names)[found.labels]
    return names


def read_validation(reference: Any, train: Rows, **options: Any) -> Rows:
    """Read other data to choose by: its `validation` split, or all rows where it has no splits.

    Data with splits but without that one is refused, and so are rows that are also among `train`; options
    are those of `read_rows`.
    """
    rows, found = read_rows(reference, **options)
    if found.splits is not None:
        if "validation" not in found.split_sizes:
            raise DataError(
                f"it has the splits {', '.join(found.split_sizes)} and no validation",
                where=found.name,
                fix="name data with a validation split, or without splits",
            )
        rows, _ = read_rows(reference, **{**options, "split": "validation"})
    known = set(_keys(train))
    shared = [number for number, key in enumerate(_keys(rows)) if key in known]
    if shared:
        raise DataError(
            f"{len(shared)} of its {len(rows.inputs)} rows are also training rows, row {shared[0] + 1} first",
            where=rows.name,
            fix="leave them out on one side",
        )
    return rows


def _keys(rows: Rows) -> list[tuple[bytes, str]]:
    """Return what each row is known by: its values in float32, and its target."""
    if rows.inputs.dtype == object or rows.targets is None:  # ragged rows are refused where they are fitted
        return []
    values = np.ascontiguousarray(rows.inputs, dtype=np.float32)
    targets = [str(np.asarray(target).tolist()) for target in rows.targets]
    return [(value.tobytes(), target) for value, target in zip(values, targets, strict=True)]


__all__ = ["Rows", "read_rows", "read_validation"]
