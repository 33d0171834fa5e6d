"""Numbers: arrays, series and vectors from npy, npz, pt, parquet lists and tables of numeric columns."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transship.data.columns import finite_column, numeric_columns
from transship.data.dataset import Dataset
from transship.data.labels import (
    USUAL,
    Options,
    assemble,
    encode_labels,
    find_column,
    first_null,
    missing_column,
)
from transship.data.tables import DataTable, MemoryTable
from transship.errors import DataError, TransshipError
from transship.numerics import chunks
from transship.outside import require_room

_log = logging.getLogger(__name__)
NumberKind = Literal["array", "series", "vector"]
_DIMENSIONS = {"vector": (2, 2), "series": (2, 3), "array": (1, 8)}
_SHAPES = {
    "vector": "[rows, width]",
    "series": "[rows, time] or [rows, channels, time]",
    "array": "[rows, …]",
}


def numbers_of_table(
    table: DataTable, kind: NumberKind, options: Options, name: str, length: int | None
) -> Dataset:
    """Return a table's column of lists; without one, its numeric columns side by side [rows, columns]."""
    column = _list_column(table, kind, options)
    if column is None:
        used = numeric_columns(table, options)
        parts = [finite_column(table, each, gaps=options.gaps) for each in used]
        return assemble(table, np.stack(parts, axis=1), kind, options, used=used, name=name)
    where = f"{table.source}, column '{column}'"
    values = stack_lists(table.column(column), where=where, length=length, gaps=options.gaps)
    return assemble(
        table, checked(values, kind, where, gaps=options.gaps), kind, options, used=[column], name=name
    )


def numbers_of_file(file: Path, kind: NumberKind, options: Options, name: str, length: int | None) -> Dataset:
    """Return the rows of an npy, npz or pt file; the latter two may hold labels, ids and splits too."""
    where = str(file)
    arrays = _read(file)
    if None in arrays:
        values = checked(_cut(arrays[None], length), kind, where, gaps=options.gaps)
        dataset = Dataset(name=name, kind=kind, inputs=values)
        return dataset.split(options.split) if options.split is not None else dataset
    named = {key: value for key, value in arrays.items() if key is not None}
    column = _array_name(named, kind, options, where)
    values = checked(_cut(named[column], length), kind, f"{where}, array '{column}'", gaps=options.gaps)
    # arrays of another length (constants such as a viscosity) are no columns of this table
    columns = {key: value for key, value in named.items() if value.ndim >= 1 and len(value) == len(values)}
    wide = {key: value for key, value in columns.items() if value.ndim > 1 and key != column}
    flat = {key: value.tolist() for key, value in columns.items() if value.ndim == 1 and key != column}
    for key in (options.label or None, options.id, options.split_column):
        if key is not None and key not in columns:
            raise missing_column(key, list(columns), where=where)
    table = MemoryTable(where, {column: [0] * len(values)} | flat, len(values))
    target = _wide_target(wide, flat, options)
    if target is None:
        return assemble(table, values, kind, options, used=[column], name=name)
    plain = assemble(table, values, kind, _without_label(options), used=[column], name=name)
    labels, _ = encode_labels(wide[target].astype(np.float64), where=f"{where}, array '{target}'")
    full = Dataset(
        name=name,
        kind=kind,
        inputs=values,
        labels=labels,
        ids=plain.ids,
        has_ids=plain.has_ids,
        splits=plain.splits,
    )
    return full.split(options.split) if options.split is not None else full


def stack_lists(column: Any, *, where: str, length: int | None = None, gaps: bool = False) -> NDArray[Any]:
    """Return a pyarrow column of (nested) lists as an array [rows, …]; refuse ragged rows by number.

    With `length`, the last axis of one-level lists is cut to it or filled up with zeros. With `gaps`, a
    number that is missing is NaN.
    """
    import pyarrow
    import pyarrow.types as types

    if column.null_count:
        raise DataError(
            f"row {first_null(column) + 1} is missing ({column.null_count} such rows)",
            where=where,
            fix="drop those rows",
        )
    flat = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    shape, rows = [len(flat)], len(flat)
    while _is_list(flat.type):
        if types.is_fixed_size_list(flat.type):
            width, values = flat.type.list_size, flat.flatten()
        else:
            sizes = flat.value_lengths().to_numpy(zero_copy_only=False)
            values = flat.flatten()
            if length is not None and len(shape) == 1 and not _is_list(values.type):
                return _cut_lists(_plain_numbers(values, where, gaps=gaps), sizes, length)
            width = _one_length(sizes, rows, where)
        if values.null_count and not isinstance(values, pyarrow.NullArray) and _is_list(values.type):
            raise DataError("a row holds a list that is missing", where=where, fix="drop those rows")
        shape.append(int(width))
        flat = values
    return _cut(_plain_numbers(flat, where, gaps=gaps).reshape(shape), length)


def checked(values: NDArray[Any], kind: NumberKind, where: str, *, gaps: bool = False) -> NDArray[Any]:
    """Return `values` when they are finite numbers (with `gaps` also NaN) of a shape that fits the kind; read
    in pieces.
    """
    if values.dtype.kind not in "fiub":
        raise DataError(
            f"it holds {values.dtype} and no numbers", where=where, fix="store floats or integers"
        )
    least, most = _DIMENSIONS[kind]
    if not least <= values.ndim <= most:
        raise DataError(
            f"its shape {list(values.shape)} does not read as {kind}",
            where=where,
            fix=f"give {_SHAPES[kind]}",
        )
    if not len(values) or not all(values.shape):
        raise DataError(f"it is empty (shape {list(values.shape)})", where=where, fix="give at least one row")
    if values.dtype.kind == "f":
        step = max(1, (1 << 22) // max(1, int(np.prod(values.shape[1:]))))
        for part in chunks(len(values), step):
            rows = values[part].reshape(part.stop - part.start, -1)
            fine = (~np.isinf(rows) if gaps else np.isfinite(rows)).all(axis=1)
            if not fine.all():
                row = part.start + int(np.argmin(fine)) + 1
                raise DataError(
                    f"row {row} holds {'infinity' if gaps else 'NaN or infinity'}",
                    where=where,
                    fix="fill in or drop the rows that do",
                )
    return values


def _list_column(table: DataTable, kind: NumberKind, options: Options) -> str | None:
    """Return the column of lists to read, or None for a table of plain numeric columns."""
    if options.column is not None:
        return find_column("array", table.names, options.column, where=table.source)
    for part in (kind, "series", "vector", "array"):
        column = find_column(part, table.names, None, where=table.source)
        if column is not None and _is_list(table.type_of(column)):
            return column
    lists = [name for name in table.names if _is_list(table.type_of(name))]
    if len(lists) > 1:
        raise DataError(
            f"the columns {', '.join(lists)} all hold lists",
            where=table.source,
            fix="name one with --column (column= in Python)",
        )
    return lists[0] if lists else None


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _one_length(sizes: NDArray[Any], rows: int, where: str) -> int:
    odd = np.flatnonzero(sizes != sizes[0])
    if len(odd):
        row = int(odd[0]) * rows // len(sizes) + 1
        raise DataError(
            f"the rows are ragged: row 1 has {sizes[0]} values and row {row} has {sizes[odd[0]]}",
            where=where,
            fix="give rows of one length, or pass length= to cut or fill them up",
        )
    return int(sizes[0])


def _plain_numbers(values: Any, where: str, *, gaps: bool) -> NDArray[Any]:
    if values.null_count and not gaps:
        raise DataError("a row holds a value that is missing", where=where, fix="fill in or drop those rows")
    if not len(values):
        return np.empty(0, np.float32)
    array = np.asarray(values.to_numpy(zero_copy_only=False))
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"it holds {values.type} and no numbers",
            where=where,
            fix="name another column with --column (column= in Python)",
        )
    return array


def _cut_lists(values: NDArray[Any], sizes: NDArray[Any], length: int) -> NDArray[Any]:
    result = np.zeros((len(sizes), length), dtype=values.dtype)
    ends = np.cumsum(sizes)
    for row, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        kept = min(int(size), length)
        result[row, :kept] = values[end - size : end - size + kept]
    return result


def _cut(values: NDArray[Any], length: int | None) -> NDArray[Any]:
    if length is None or values.ndim < 2 or values.shape[-1] == length:
        return values
    missing = max(0, length - values.shape[-1])
    return np.pad(values[..., :length], [(0, 0)] * (values.ndim - 1) + [(0, missing)])


def _array_name(arrays: Mapping[str, NDArray[Any]], kind: NumberKind, options: Options, where: str) -> str:
    names = list(arrays)
    if options.column is not None:
        return find_column("array", names, options.column, where=where) or ""
    for part in (kind, "array", "series", "vector"):
        column = find_column(part, names, None, where=where)
        if column is not None:
            return column
    if len(names) == 1:
        return names[0]
    raise DataError(
        f"none of its arrays ({', '.join(names)}) is named as {kind}",
        where=where,
        fix="name one with --column (column= in Python)",
    )


def _wide_target(wide: Mapping[str, Any], flat: Mapping[str, Any], options: Options) -> str | None:
    """Return the array [rows, …] of targets, when that and no plain column is the label."""
    if options.label is False or (options.label is not None and options.label in flat):
        return None
    if options.label is not None:
        return options.label
    usual = [name for name in USUAL["label"] if name in wide or name in flat]
    return usual[0] if usual and usual[0] in wide else None


def _without_label(options: Options) -> Options:
    return Options(column=options.column, label=False, id=options.id, split_column=options.split_column)


def _read(file: Path) -> dict[str | None, NDArray[Any]]:
    """Return the arrays of a file by name; None names the only one of a file without names."""
    try:
        return _READERS[file.suffix.lower()](file)
    except TransshipError:
        raise
    except Exception as error:  # numpy, zipfile and torch raise whatever they meet in a broken file
        raise _unreadable(file, error) from error


def _read_npy(file: Path) -> dict[str | None, NDArray[Any]]:
    return {None: np.load(file, mmap_mode="r", allow_pickle=False)}


def _read_npz(file: Path) -> dict[str | None, NDArray[Any]]:
    _require_room_for_zip(file)
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_pt(file: Path) -> dict[str | None, NDArray[Any]]:
    """Read a torch file of tensors, weights-only: nothing in it is run."""
    import torch

    if zipfile.is_zipfile(file):
        _require_room_for_zip(file)
    content = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(content, torch.Tensor):
        return {None: _array_of(content, file)}
    if not isinstance(content, dict):
        raise DataError("it holds no tensors by name", where=str(file), fix="save a dict of tensors, or npz")
    tensors = {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}
    return {key: _array_of(value, file) for key, value in tensors.items()}


def _require_room_for_zip(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        require_room(sum(entry.file_size for entry in archive.infolist()), str(file))


def _array_of(tensor: Any, file: Path) -> NDArray[Any]:
    """Return a tensor as numpy holds it: dense, narrow floats as float32.

    An expanded or sparse tensor takes less in the file than its rows take here.
    """
    require_room(tensor.numel() * tensor.element_size(), str(file))
    plain = tensor.detach().dequantize() if tensor.is_quantized else tensor.detach()
    plain = plain.to_dense().resolve_conj().resolve_neg()
    narrow = plain.is_floating_point() and plain.element_size() < 4 and str(plain.dtype) != "torch.float16"
    array: NDArray[Any] = (plain.float() if narrow else plain).numpy()
    return array


def _unreadable(file: Path, error: Exception) -> DataError:
    if not file.stat().st_size:
        return DataError("the file is empty", where=str(file), fix="give a file with at least one row")
    if file.suffix != ".pt" and any(word in str(error) for word in ("pickle", "Python objects")):
        return DataError(
            "it holds pickled objects (perhaps ragged rows), which are never loaded",
            where=str(file),
            fix="save plain numbers, or rows of different lengths as a parquet column of lists",
        )
    return DataError(
        f"it is no readable {file.suffix[1:]} file", where=str(file), fix="write or fetch it again"
    )


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".pt": _read_pt}
