"""The doors of this room: one function per kind of data, and `load`, which finds the kind out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from transship.data.columns import wide_kind
from transship.data.dataset import KINDS, Dataset, Kind
from transship.data.labels import (
    USUAL,
    Options,
    assemble,
    encode_labels,
    find_column,
    find_pair,
    first_null,
    need_column,
)
from transship.data.locate import NUMBERS, TABLES, data_files, hub_table, is_hub_id, missing_data
from transship.data.numbers import NumberKind, checked, numbers_of_file, numbers_of_table
from transship.data.pictures import (
    IMAGE_SUFFIXES,
    Mode,
    PixelImages,
    digits,
    images_of_folder,
    images_of_table,
)
from transship.data.rows import ArrowRows, PairRows
from transship.data.tables import DataTable, open_table
from transship.errors import DataError, OptionError

_LOG = logging.getLogger(__name__)


class ReadOptions(TypedDict, total=False):
    """The options that every kind of data takes."""

    id: str | None
    split: str | None
    split_column: str | None
    name: str | None
    config: str | None
    gaps: bool


def text(
    reference: str | Path,
    column: str | None = None,
    label: str | Literal[False] | None = None,
    *,
    pair: str | Literal[False] | None = None,
    **reading: Unpack[ReadOptions],
) -> Dataset:
    """Return texts (txt, jsonl, json, csv, tsv, fasta, parquet, hub): `text`, or `pair` for two text columns.

    Args:
        reference: a path, a name in the data folders, or a hub id `owner/name[@revision]`.
        column: the text column, where its name is unusual; several as `title,text` are joined by a space.
        label: the label column; False reads none.
        pair: the second text column; False reads only the first of two.
        reading: `id`, `split` (keep one), `split_column`, `name`, `config` (of a hub data set).
    """
    return load(reference, "text", column=column, label=label, pair=pair, **reading)


def images(
    reference: str | Path,
    column: str | None = None,
    label: str | Literal[False] | None = None,
    *,
    mode: Mode = "RGB",
    **reading: Unpack[ReadOptions],
) -> Dataset:
    """Return images (a folder with class sub-folders or flat, parquet of encoded bytes, hub), decoded lazily.

    `mode` is what they are converted to; None keeps each as it was stored. The rest is as for `text`.
    """
    return load(reference, "image", column=column, label=label, mode=mode, **reading)


def arrays(
    reference: str | Path,
    column: str | None = None,
    label: str | Literal[False] | None = None,
    **reading: Unpack[ReadOptions],
) -> Dataset:
    """Return arrays [rows, …] (npy, npz, pt, parquet lists, numeric columns of csv), finite and of one shape.

    In npz and pt files, `column` and `label` name arrays; a label array [rows, …] gives numeric targets.
    """
    return load(reference, "array", column=column, label=label, **reading)


def series(
    reference: str | Path,
    column: str | None = None,
    label: str | Literal[False] | None = None,
    *,
    length: int | None = None,
    **reading: Unpack[ReadOptions],
) -> Dataset:
    """Return series [rows, time] or [rows, channels, time]; `length` cuts or zero-fills unequal rows."""
    return load(reference, "series", column=column, label=label, length=length, **reading)


def vectors(
    reference: str | Path,
    column: str | None = None,
    label: str | Literal[False] | None = None,
    **reading: Unpack[ReadOptions],
) -> Dataset:
    """Return vectors [rows, width] with their ids."""
    return load(reference, "vector", column=column, label=label, **reading)


def load(
    reference: str | Path | Dataset,
    kind: Kind | None = None,
    *,
    column: str | None = None,
    label: str | Literal[False] | None = None,
    pair: str | Literal[False] | None = None,
    mode: Mode = "RGB",
    length: int | None = None,
    **reading: Unpack[ReadOptions],
) -> Dataset:
    """Return the data that `reference` stands for; its kind is found from the file and its columns.

    A reference is `digits`, a path, a name in $TRANSSHIP_DATA or ~/.cache/transship/data, or a hub id.
    """
    if isinstance(reference, Dataset):
        return reference if reading.get("split") is None else reference.split(str(reading["split"]))
    if kind is not None and kind not in KINDS:
        raise OptionError(
            f"'{kind}' is no kind of data", where=str(reference), fix=f"choose one of {', '.join(KINDS)}"
        )
    options = Options(
        column=column,
        label=label,
        pair=pair,
        id=reading.get("id"),
        split=reading.get("split"),
        split_column=reading.get("split_column"),
        name=reading.get("name"),
        gaps=reading.get("gaps", False),
    )
    name = options.name or str(reference)
    files = data_files(reference)
    _LOG.info("data %s: %s", reference, ", ".join(map(str, files)) or "no file")
    if not files and str(reference) == "digits":
        return digits(kind="array" if kind == "array" else "image", split=options.split, mode=mode)
    if not files and not is_hub_id(reference):
        raise missing_data(reference)
    if files and files[0].is_dir():
        inside = _tables_below(files[0], kind)
        if not inside:
            return images_of_folder(files[0], options, name, mode)
        files = inside
    if files and files[0].suffix.lower() in NUMBERS:
        return numbers_of_file(files[0], _number_kind(kind, files[0]), options, name, length)
    table = open_table(files) if files else hub_table(str(reference), reading.get("config"))
    return _of_table(table, kind or guess_kind(table, options), options, name, mode, length)


def wrap(
    inputs: Sequence[Any] | NDArray[Any],
    labels: Sequence[Any] | NDArray[Any] | None = None,
    *,
    kind: Kind,
    name: str = "data",
    label_names: Sequence[str] | None = None,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    splits: Sequence[str] | None = None,
    mode: Mode = "RGB",
) -> Dataset:
    """Return what is already in memory as a `Dataset`, checked as a file would be."""
    rows: Any = inputs
    if kind in ("array", "series", "vector"):
        rows = checked(np.asarray(inputs), kind, name)
    elif kind == "image" and isinstance(inputs, np.ndarray):
        if inputs.dtype != np.uint8:
            raise DataError(f"the pixels are {inputs.dtype}", where=name, fix="give uint8 from 0 to 255")
        rows = PixelImages(inputs, mode)
    elif kind in ("text", "pair"):
        rows = _checked_texts(inputs, kind, name)
    encoded, names = (None, ()) if labels is None else encode_labels(labels, where=name, names=label_names)
    return Dataset(
        name=name,
        kind=kind,
        inputs=rows,
        labels=encoded,
        label_names=names,
        ids=np.empty(0, np.int64) if ids is None else np.asarray(ids),
        has_ids=ids is not None,
        splits=None if splits is None else np.asarray(splits, dtype=str),
    )


def guess_kind(table: DataTable, options: Options) -> Kind:
    """Return the kind that the table's columns speak for."""
    names = {name.lower() for name in table.names}
    if options.column is not None and options.column in table.names:
        return _kind_of_column(table, options.column)
    for kind in ("image", "series", "vector"):
        for usual in USUAL[kind]:
            column = next((name for name in table.names if name.lower() == usual), None)
            if column is not None and _kind_of_column(table, column) in (kind, "array"):
                return kind
    if find_pair(table.names) is not None or names & set(USUAL["text"]):
        return "text"
    kinds = {_kind_of_column(table, name) for name in table.names}
    return wide_kind(table, options) or ("array" if kinds & {"array"} else "text")


def _kind_of_column(table: DataTable, name: str) -> Kind:
    import pyarrow.types as types

    kind = table.type_of(name)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_struct(kind):
        return "image"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        usual = (part for part in ("series", "vector") if name.lower() in USUAL[part])
        return next(usual, "array")  # type: ignore[arg-type]
    return "array" if types.is_floating(kind) else "text"


def _of_table(
    table: DataTable, kind: Kind, options: Options, name: str, mode: Mode, length: int | None
) -> Dataset:
    if kind == "text" or kind == "pair":
        return text_of_table(table, options, name)
    if kind == "image":
        return images_of_table(table, options, name, mode)
    return numbers_of_table(table, kind, options, name, length)


def _number_kind(kind: Kind | None, file: Path) -> NumberKind:
    if kind in ("array", "series", "vector"):
        return kind
    if kind is None:
        return "array"
    raise DataError(
        f"a {file.suffix[1:]} file holds numbers and no {kind}", where=str(file), fix="read it with arrays()"
    )


def _tables_below(folder: Path, kind: Kind | None) -> tuple[Path, ...]:
    """Return the tables of a folder, all of one form; none when the folder is one of images.

    Parquet files are the data wherever they lie; a csv or txt file beside images only describes them.
    """
    for suffix in TABLES:
        if suffix != ".parquet" and kind in (None, "image") and _has_images(folder):
            return ()
        files = sorted(path for path in folder.rglob(f"*{suffix}") if not path.name.startswith("."))
        if files:
            return tuple(files)
    return ()


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.rglob("*"))


def _checked_texts(inputs: Sequence[Any] | NDArray[Any], kind: Kind, name: str) -> Sequence[Any]:
    wanted = _is_text if kind == "text" else _is_pair
    wrong = next((number for number, row in enumerate(inputs, 1) if not wanted(row)), None)
    if wrong is not None:
        form = "a string" if kind == "text" else "two strings"
        raise DataError(f"row {wrong} is no {kind}", where=name, fix=f"give {form} for every row")
    if kind == "text":
        return [str(row) for row in inputs]
    return PairRows([row[0] for row in inputs], [row[1] for row in inputs])


def _is_text(row: Any) -> bool:
    return isinstance(row, str)


def _is_pair(row: Any) -> bool:
    return isinstance(row, (tuple, list)) and len(row) == 2 and all(isinstance(part, str) for part in row)


def text_of_table(table: DataTable, options: Options, name: str) -> Dataset:
    """Return the texts of a table, or the pairs when it has two text columns and one is not named alone."""
    if options.column and options.column not in table.names and "," in options.column:
        return _joined_text(table, options, name)
    first, second = _columns(table, options)
    rows = ArrowRows(_strings(table, first))
    if second is None:
        return assemble(table, rows, "text", options, used=[first], name=name)
    pairs = PairRows(rows, ArrowRows(_strings(table, second)))
    return assemble(table, pairs, "pair", options, used=[first, second], name=name)


def _joined_text(table: DataTable, options: Options, name: str) -> Dataset:
    """Return texts of several columns, such as `title,text`, one after the other; empty ones are left out."""
    used = [
        need_column("text", table.names, part.strip(), where=table.source)
        for part in str(options.column).split(",")
    ]
    parts = [table.column(column).to_pylist() for column in used]
    texts = [" ".join(str(part).strip() for part in row if part) for row in zip(*parts, strict=True)]
    empty = next((row for row, text in enumerate(texts, 1) if not text), None)
    if empty is not None:
        what = f"row {empty} has no text in {' and '.join(used)}"
        raise DataError(what, where=table.source, fix="fill in or drop those rows")
    return assemble(table, texts, "text", options, used=used, name=name)


def _columns(table: DataTable, options: Options) -> tuple[str, str | None]:
    where = table.source
    pair = find_pair(table.names) if options.column is None else None
    if pair is not None and options.pair is None:
        return pair
    if options.pair:
        second = find_column("text", table.names, options.pair, where=where)
        rest = [column for column in table.names if column != second]
        if pair is not None and pair[1] == second:
            return pair[0], second
        return need_column("text", rest, options.column, where=where), second
    if pair is not None and options.pair is False:
        return pair[0], None
    return need_column("text", table.names, options.column, where=where), None


def _strings(table: DataTable, column: str) -> Any:
    """Return a column of text, or refuse it by its first row without one."""
    import pyarrow
    import pyarrow.types as types

    values = table.column(column)
    where = f"{table.source}, column '{column}'"
    if values.null_count:
        raise DataError(
            f"row {first_null(values) + 1} has no text ({values.null_count} such rows)",
            where=where,
            fix="fill in or drop those rows",
        )
    if types.is_dictionary(values.type):
        values = pyarrow.chunked_array([chunk.dictionary_decode() for chunk in values.chunks])
    if not (types.is_string(values.type) or types.is_large_string(values.type)):
        raise DataError(
            f"it holds {values.type} and no text",
            where=where,
            fix="name the text column with --column (column= in Python)",
        )
    return values
