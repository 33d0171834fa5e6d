"""What stands beside the inputs in a table: labels with their names, ids and splits."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transship.data.dataset import Dataset, Kind, split_name
from transship.data.tables import DataTable
from transship.errors import DataError

# part → the names it usually has, the likeliest first
USUAL: dict[str, tuple[str, ...]] = {
    "id": ("id", "ids", "_id", "idx", "doc_id", "document_id", "uid", "key"),
    "text": (
        *("text", "sentence", "content", "document", "review", "question", "query", "utterance"),
        *("message", "comment", "body", "abstract", "description", "texts", "sequence"),
    ),
    "image": ("image", "img", "images", "picture", "photo", "pixels"),
    "series": ("series", "signal", "time_series", "timeseries", "values", "sequence", "waveform"),
    "vector": ("vector", "embedding", "embeddings", "vectors", "emb", "vec", "features"),
    "array": ("array", "x", "input", "inputs", "data", "field", "arr_0", "features"),
    "label": ("label", "labels", "y", "target", "targets", "class", "category", "intent", "output", "score"),
    "label_name": ("label_name", "label_names", "label_text", "class_name"),
    "split": ("split", "set", "subset", "fold", "partition"),
}
# which second column goes with which first one
_PARTNERS = (
    ("text_a", "text_b"),
    ("text", "text_b"),
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)


def find_column(part: str, names: Sequence[str], given: str | None, *, where: str) -> str | None:
    """Return the column that plays `part`: `given` (an error when absent), else a usual name, else None."""
    if given is not None:
        if given in names:
            return given
        raise missing_column(given, names, where=where)
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[usual] for usual in USUAL[part] if usual in lower), None)


def need_column(part: str, names: Sequence[str], given: str | None, *, where: str) -> str:
    """Return the column that plays `part`, or refuse a table without one."""
    column = find_column(part, names, given, where=where)
    if column is not None:
        return column
    near = [name for name in names if difflib.get_close_matches(name.lower(), USUAL[part], n=1, cutoff=0.75)]
    hint = (
        f"did you mean '{near[0]}'? Name it with --column (column= in Python)"
        if near
        else "name the column with --column (column= in Python)"
    )
    raise DataError(f"no column reads as {part} ({_listed(names)})", where=where, fix=hint)


def find_pair(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the two text columns of a table of pairs, or None."""
    lower = {name.lower(): name for name in reversed(names)}
    return next(((lower[a], lower[b]) for a, b in _PARTNERS if a in lower and b in lower), None)


def missing_column(given: str, names: Sequence[str], *, where: str) -> DataError:
    """Return the error for a column that the user named and the table lacks."""
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    fix = f"did you mean '{near[0]}'?" if near else "name one of these"
    return DataError(f"there is no column '{given}' ({_listed(names)})", where=where, fix=fix)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"the columns are {shown}" if names else "it has no columns"


_MOST_CLASSES = 100_000
_WHOLE = re.compile(r"[+-]?\d{1,18}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a table is read: columns by name where their usual names do not serve.

    Attributes:
        column: the column of the inputs.
        pair: the second text of a pair; False reads single texts where pairs would be found.
        label: the column of the labels; False reads none.
        id: the column of the ids.
        split_column: the column of the splits.
        split: the one split to keep.
        name: what to call the data set; otherwise the reference as given.
        gaps: whether a missing number is read as NaN; it is refused otherwise.
    """

    column: str | None = None
    pair: str | Literal[False] | None = None
    label: str | Literal[False] | None = None
    id: str | None = None
    split_column: str | None = None
    split: str | None = None
    name: str | None = None
    gaps: bool = False


def assemble(
    table: DataTable, inputs: Any, kind: Kind, options: Options, *, used: Sequence[str], name: str
) -> Dataset:
    """Return the data set of `inputs` with the table's other columns; `used` are taken as inputs already."""
    free = [column for column in table.names if column not in used]
    where = table.source
    id_column = find_column("id", free if options.id is None else table.names, options.id, where=where)
    split_column = find_column(
        "split", free if options.split_column is None else table.names, options.split_column, where=where
    )
    if split_column is not None and options.split_column is None and not _reads_as_split(table, split_column):
        split_column = None
    dataset = Dataset(
        name=name,
        kind=kind,
        inputs=inputs,
        ids=np.empty(0, np.int64) if id_column is None else _ids(table, id_column),
        has_ids=id_column is not None,
        splits=None if split_column is None else _splits(table, split_column),
    )
    labels, label_names = _labels(table, options, free)
    dataset = dataclasses.replace(dataset, labels=labels, label_names=label_names)
    _refuse_unnamed(dataset, options.split, where)
    return dataset.split(options.split) if options.split is not None else dataset


def encode_labels(
    values: Any, *, where: str, names: Sequence[str] | None = None
) -> tuple[Any, tuple[str, ...]]:
    """Return (labels, names) of a plain sequence or array: classes as int64 from 0, targets as float64.

    Whole numbers from 0 keep their value; other whole numbers, and names, become their place in sorted order.
    """
    array = np.asarray(values)
    if array.dtype.kind == "O" or any(value is None for value in np.ravel(array[:1])):
        _refuse_nulls(array, where)
        array = np.asarray([*array.tolist()])
    if array.dtype.kind == "f":
        _refuse_nan(array, where)
        return array.astype(np.float64), ()
    if array.ndim != 1:
        raise DataError(
            f"the labels have shape {list(array.shape)}", where=where, fix="give one label per row (a vector)"
        )
    if array.dtype.kind == "b":
        return array.astype(np.int64), tuple(names or ("false", "true"))
    if array.dtype.kind in "US" and all(_WHOLE.fullmatch(text.strip()) for text in array.astype(str)):
        array = array.astype(np.int64)
    elif array.dtype.kind in "US" and (numbers := _as_floats(array)) is not None:
        _refuse_nan(numbers, where)
        return numbers, ()
    if array.dtype.kind in "iu":
        return _whole_labels(array.astype(np.int64), names)
    if array.dtype.kind not in "US":
        raise DataError(
            "the labels are neither numbers nor names", where=where, fix="name another column with label="
        )
    return _named_labels(array.astype(str), where)


def _labels(
    table: DataTable, options: Options, free: Sequence[str]
) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    if options.label is False:
        return None, ()
    if options.label is not None and options.label not in table.names:
        raise missing_column(options.label, table.names, where=table.source)
    column = find_column(
        "label", free if options.label is None else table.names, options.label, where=table.source
    )
    beside = find_column("label_name", free, None, where=table.source)
    if column is None:
        column, beside = beside, None
    if column is None:
        return None, ()
    place = f"{table.source}, column '{column}'"
    values = _plain(table, column)
    if options.label is None and values.dtype.kind == "O" and not isinstance(values[0], str):
        return None, ()  # a column of lists that only happens to be called `target` or `output`
    labels, names = encode_labels(values, where=place, names=table.classes.get(column))
    if beside is not None and column.lower() in ("label", "labels") and labels.dtype.kind == "i":
        names = _names_beside(labels, _plain(table, beside), names, place)
    return labels, names


def _whole_labels(
    labels: NDArray[np.int64], names: Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if names:
        return labels, tuple(names)
    if labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        values, places = np.unique(labels, return_inverse=True)
        return places.astype(np.int64).reshape(-1), tuple(str(value) for value in values)
    return labels, tuple(str(value) for value in range(int(labels.max()) + 1))


def _named_labels(array: NDArray[np.str_], where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    blank = np.flatnonzero(np.char.strip(array) == "")
    if len(blank):
        raise DataError(
            f"row {blank[0] + 1} has an empty label",
            where=where,
            fix="label every row, or drop those without",
        )
    names, places = np.unique(array, return_inverse=True)
    return places.astype(np.int64).reshape(-1), tuple(str(name) for name in names)


def _names_beside(
    labels: NDArray[Any], named: NDArray[Any], known: tuple[str, ...], where: str
) -> tuple[str, ...]:
    """Return the names of integer labels from the column beside them; one label has one name."""
    result = list(known)
    for value in np.unique(labels):
        rows = np.flatnonzero(labels == value)
        spellings = sorted({str(name) for name in named[rows]})
        if len(spellings) > 1:
            raise DataError(
                f"label {value} has the names {spellings[0]} and {spellings[1]}",
                where=where,
                fix="mend the labels",
            )
        if 0 <= value < len(result):
            result[value] = spellings[0]
    twice = next((name for name in result if result.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"the name '{twice}' stands for several labels", where=where, fix="mend the labels")
    return tuple(result)


def _refuse_unnamed(dataset: Dataset, split: str | None, where: str) -> None:
    """Refuse labels outside the named classes, in the rows kept; −1 marks unlabelled rows on the hub."""
    if dataset.labels is None or not dataset.label_names:
        return
    outside = (dataset.labels < 0) | (dataset.labels >= dataset.classes)
    if split is not None and dataset.splits is not None:
        outside &= dataset.splits == split_name(split)
    wrong = np.flatnonzero(outside)
    if len(wrong):
        label = dataset.labels[wrong[0]]
        raise DataError(
            f"row {wrong[0] + 1} has label {label}, outside the {dataset.classes} named classes",
            where=where,
            fix="choose a labelled split with split=, mend the labels, or pass label=False",
        )


def _plain(table: DataTable, column: str) -> NDArray[Any]:
    """Return a column as a numpy array; text as objects. Rows without a value are refused by number."""
    values = table.column(column)
    if values.null_count:
        raise DataError(
            f"row {first_null(values) + 1} has no value ({values.null_count} such rows)",
            where=f"{table.source}, column '{column}'",
            fix="fill in or drop those rows",
        )
    return np.asarray(values.to_numpy())


def _ids(table: DataTable, column: str) -> NDArray[Any]:
    values = _plain(table, column)
    if values.dtype.kind == "f":
        raise DataError(
            "the ids are fractions",
            where=f"{table.source}, column '{column}'",
            fix="name another column with id=",
        )
    return values if values.dtype.kind in "iu" else np.array([str(value) for value in values], dtype=object)


def _splits(table: DataTable, column: str) -> NDArray[np.str_]:
    values = _plain(table, column)
    known = {value: split_name(str(value)) for value in set(values.tolist())}
    return np.array([known[value] for value in values.tolist()])


def _reads_as_split(table: DataTable, column: str) -> bool:
    """Return whether a column with a usual name holds splits; `set` or `fold` may mean other things."""
    if column.lower() == "split":
        return True
    values = set(table.column(column).unique().to_pylist())
    return all(
        isinstance(value, str) and split_name(value) in ("train", "validation", "test") for value in values
    )


def first_null(column: Any) -> int:
    """Return the number of the first row of a pyarrow column without a value."""
    import pyarrow.compute

    return int(pyarrow.compute.index(column.is_null(), True).as_py())


def _refuse_nulls(array: NDArray[Any], where: str) -> None:
    row = next((row for row, value in enumerate(array) if value is None), None)
    if row is not None:
        raise DataError(
            f"row {row + 1} has no label", where=where, fix="label every row, or drop those without"
        )
    if any(isinstance(value, (list, dict, np.ndarray)) for value in array[:1]):
        raise DataError("a row has several labels", where=where, fix="give one label per row")


def _refuse_nan(array: NDArray[Any], where: str) -> None:
    wrong = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
    if len(wrong):
        raise DataError(
            f"row {wrong[0] + 1} is NaN or infinite", where=where, fix="fill in or drop those rows"
        )


def _as_floats(array: NDArray[Any]) -> NDArray[np.float64] | None:
    try:
        return array.astype(np.float64)
    except ValueError:
        return None
