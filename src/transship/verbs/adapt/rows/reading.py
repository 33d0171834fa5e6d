"""Data sets as arrays: what is learned from, and what is chosen by, drawn once and never from a test set."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transship import data
from transship.data import Dataset
from transship.data.use import held_out
from transship.errors import DataError, OptionError
from transship.types import Array
from transship.verbs.adapt.rows.inputs import check_finite
from transship.verbs.adapt.rows.metrics import as_numpy
from transship.verbs.adapt.rows.targets import plain_labels
from transship.verbs.adapt.settings import Missing, Settings


@dataclass(frozen=True, eq=False)
class Examples:
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
    missing: Missing = "fill",
    needs_targets: bool = True,
) -> tuple[Examples, Dataset]:
    """Read a data set as arrays: series, arrays, vectors, or images as [rows, channels, height, width].

    With `missing` "refuse", rows with NaN are refused by the numbers that they have in the data.
    """
    asked: Any = {"series": "series", "tabular": "array", "grid": None}.get(kind)
    load: Any = _load_symbols if kind == "tokens" else data.load
    dataset = load(reference, asked, column=column, label=label, gaps=True)
    if split is not None and dataset.splits is not None:
        dataset = dataset.split(split)
    if dataset.kind in ("text", "pair") and kind != "tokens":
        raise DataError(
            f"it holds {dataset.kind}, which the backbone reads already",
            where=dataset.name,
            fix="give series, arrays or images, name their column (--column), or pass --kind tokens",
        )
    if needs_targets and dataset.labels is None:
        raise DataError("it has no targets", where=dataset.name, fix="name their column with --label")
    inputs = _arrays(dataset)
    if inputs.dtype.kind == "f":
        check_finite(inputs, missing, dataset.name)
    return Examples(inputs, _named(dataset), dataset.ids, dataset.name), dataset


def _load_symbols(reference: Any, _: Any, **columns: Any) -> Dataset:
    """Read symbols: ids as numbers, or letters as text."""
    try:
        return data.load(reference, "array", **columns)
    except DataError as error:
        with contextlib.suppress(DataError):
            return data.load(reference, "text", pair=False, **columns)
        raise error


def _arrays(dataset: Dataset) -> Array:
    if dataset.kind == "text":
        return np.asarray(list(dataset.inputs))
    if dataset.kind != "image":
        return np.asarray(dataset.inputs)
    pictures = [np.asarray(dataset.inputs[row], dtype=np.float32) / 255.0 for row in range(len(dataset))]
    shapes = {picture.shape for picture in pictures}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise DataError(
            f"its images have several sizes ({first} and {second} among them)",
            where=dataset.name,
            fix="give one size",
        )
    stacked = np.stack(pictures)
    return stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)


def _named(dataset: Dataset) -> Array | None:
    """Return targets; classes by their names, so that train and test agree whatever their codes are."""
    if dataset.labels is None or not dataset.label_names:
        return dataset.labels
    names: Array = np.asarray(dataset.label_names)[dataset.labels]
    return names


def read_validation(reference: Any, train: Examples, **options: Any) -> Examples:
    """Read other data to choose by: its `validation` split, or all rows where it has no splits.

    Data with splits but without that one is refused, and so are rows that are also among `train`; options
    are those of `read_rows`.
    """
    rows, dataset = read_rows(reference, **options)
    if dataset.splits is not None:
        if "validation" not in dataset.split_sizes:
            raise DataError(
                f"it has the splits {', '.join(dataset.split_sizes)} and no validation",
                where=dataset.name,
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


def _keys(rows: Examples) -> list[tuple[bytes, str]]:
    """Return what each row is known by: its text or its values in float32, and its target."""
    if rows.inputs.dtype == object or rows.targets is None:  # ragged rows are refused where they are fitted
        return []
    text = rows.inputs.dtype.kind == "U"
    values = rows.inputs if text else np.ascontiguousarray(rows.inputs, dtype=np.float32)
    targets = [str(np.asarray(target).tolist()) for target in rows.targets]
    return [(value.tobytes(), target) for value, target in zip(values, targets, strict=True)]


@dataclass(frozen=True, eq=False)
class Split:
    """Raw rows in two parts.

    Attributes:
        inputs: to learn from.
        targets: of these.
        held_inputs: to choose by.
        held_targets: of these.
        held_index: which of the given rows are held out; empty when they came as a set of their own.
    """

    inputs: Array
    targets: Array
    held_inputs: Array
    held_targets: Array
    held_index: NDArray[np.int64]


def split_rows(X: Any, y: Any, settings: Settings) -> Split:  # noqa: N803 - scikit-learn's name
    """Return the parts; classes are cut at the share each, so that every class that can be is in both."""
    inputs, targets = plain(X, "X"), plain(y, "y")
    if len(inputs) != len(targets):
        raise DataError(
            f"there are {len(inputs)} inputs and {len(targets)} targets",
            where="y",
            fix="give one target per input",
        )
    if not len(inputs):
        raise DataError("there are no rows", where="X", fix="give at least four")
    given = settings.validation
    if isinstance(given, tuple | list):
        if len(given) != 2:
            raise OptionError(
                "it is neither a share nor a pair (X, y)", where="validation", fix="give one of them"
            )
        held, held_targets = plain(given[0], "validation X"), plain(given[1], "validation y")
        if len(held) != len(held_targets) or not len(held):
            raise DataError(
                "inputs and targets do not pair", where="validation", fix="give one target per input"
            )
        return Split(inputs, targets, held, held_targets, np.empty(0, np.int64))
    if not isinstance(given, int | float) or not 0 < given < 1:
        raise OptionError(
            f"the share {given!r} is not between 0 and 1",
            where="validation",
            fix="give 0.2, or a pair (X, y)",
        )
    if len(inputs) < 4:
        raise DataError(
            f"{len(inputs)} rows are too few to learn from and to choose by",
            where="X",
            fix="give four or more",
        )
    index = held_out(targets, float(given), settings.seed)
    kept = np.setdiff1d(np.arange(len(inputs)), index)
    return Split(inputs[kept], targets[kept], inputs[index], targets[index], index)


def plain(values: Any, where: str) -> Array:
    """Return values as an array; tensors and lists become one."""
    values = as_numpy(values)
    try:
        array = plain_labels(values, where) if where.endswith("y") else np.asarray(values)
    except ValueError as error:
        raise DataError("rows are ragged", where=where, fix="give rows of one shape") from error
    if not array.ndim:
        raise DataError("it is one value and no rows", where=where, fix="give an array")
    return array
