"""Tables from files: parquet, jsonl, json, csv, tsv, txt, fasta. Columns are read when they are asked for."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transship.data.dataset import split_name
from transship.data.fasta import FASTA, fasta_columns
from transship.data.headerless import column_names, has_no_header
from transship.data.rows import ArrowRows, LazyRows, ParquetRows
from transship.errors import DataError
from transship.outside import require_room

_SPLIT_IN_NAME = re.compile(
    r"(?:^|[-_.])(train|training|validation|valid|val|dev|test|testing)(?=[-_.]|$)", re.I
)


class DataTable(ABC):
    """Columns of equal length. `column` gives a pyarrow ChunkedArray, `rows_of` rows that are read lazily."""

    headed = True  # whether the names of its columns are the file's own

    def __init__(
        self, source: str, names: Sequence[str], count: int, classes: Mapping[str, Sequence[str]]
    ) -> None:
        self.source, self.names, self.count, self.classes = source, tuple(names), count, dict(classes)
        if not count:
            raise DataError("the file has no rows", where=source, fix="give a file with at least one row")

    @abstractmethod
    def column(self, name: str) -> Any:
        """Return a whole column."""

    def type_of(self, name: str) -> Any:
        return self.column(name).type

    def rows_of(self, name: str) -> LazyRows:
        return ArrowRows(self.column(name))

    def folder(self) -> Path | None:
        return None


class MemoryTable(DataTable):
    """A table whose columns are Python lists or pyarrow arrays."""

    def __init__(
        self,
        source: str,
        columns: Mapping[str, Any],
        count: int,
        classes: Mapping[str, Sequence[str]] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._columns, self._folder = dict(columns), folder
        super().__init__(source, list(columns), count, classes or {})

    def column(self, name: str) -> Any:
        """Return a column; a list becomes a pyarrow column now."""
        import pyarrow

        values = self._columns[name]
        if isinstance(values, pyarrow.ChunkedArray):
            return values
        try:
            return pyarrow.chunked_array([pyarrow.array(values)])
        except UnicodeEncodeError as error:
            row = next((row for row, value in enumerate(values, 1) if not _is_unicode(value)), 1)
            raise DataError(
                f"row {row} of the column '{name}' holds half a sign (a lone surrogate)",
                where=self.source,
                fix="write the whole sign, or leave it out",
            ) from error
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
            kinds = sorted({type(value).__name__ for value in values if value is not None})
            mixed = f"mixes {' and '.join(kinds)}" if len(kinds) > 1 else f"holds {kinds[0]} too large"
            raise DataError(
                f"the column '{name}' {mixed}", where=self.source, fix="give it one type"
            ) from error

    def folder(self) -> Path | None:
        return self._folder


class ParquetTable(DataTable):
    """Parquet files with the same columns, one after the other; only the columns asked for are read."""

    def __init__(self, files: Sequence[Path], source: str) -> None:
        self._paths = list(files)
        self._files = [_open_parquet(file) for file in files]
        schema = self._files[0].schema_arrow
        for path, file in zip(files, self._files, strict=True):
            if file.schema_arrow.names != schema.names:
                raise DataError(
                    f"its columns differ from those of {files[0].name}",
                    where=path.name,
                    fix="give files of one table",
                )
        self._splits = _splits_of_files(files) if "split" not in schema.names else None
        names = [*schema.names, *(["split"] if self._splits else [])]
        count = sum(file.metadata.num_rows for file in self._files)
        super().__init__(source, names, count, parquet_classes(schema.metadata or {}))

    def column(self, name: str) -> Any:
        import pyarrow

        if name == "split" and self._splits:
            sizes = [file.metadata.num_rows for file in self._files]
            parts = [pyarrow.array([split] * size) for split, size in zip(self._splits, sizes, strict=True)]
            return pyarrow.chunked_array(parts)
        try:
            for file in self._files:
                require_room(_unpacked_bytes(file, name), f"{self.source}, column '{name}'")
            columns = [file.read(columns=[name]).column(name) for file in self._files]
        except (pyarrow.ArrowException, OSError, KeyError, ValueError, MemoryError) as error:
            raise _broken(self.source, error) from error
        kinds = {column.type for column in columns}
        if len(kinds) > 1:
            raise DataError(
                f"the column '{name}' has {len(kinds)} types in its files",
                where=self.source,
                fix="give it one type",
            )
        return pyarrow.chunked_array(
            [chunk for column in columns for chunk in column.chunks], columns[0].type
        )

    def type_of(self, name: str) -> Any:
        """Return the type from the file's schema; nothing is read."""
        schema = self._files[0].schema_arrow
        return schema.field(name).type if name in schema.names else self.column(name).type

    def rows_of(self, name: str) -> LazyRows:
        """Return a column whose row groups are read when they are needed."""
        return ArrowRows(self.column(name)) if name == "split" else ParquetRows(self._files, name)

    def folder(self) -> Path | None:
        return self._paths[0].parent


def open_table(files: Sequence[Path]) -> DataTable:
    """Open one table of one or several files of the same form."""
    source = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
    suffixes = {file.suffix.lower() for file in files}
    if suffixes == {".parquet"}:
        return ParquetTable(files, source)
    if len(files) > 1:
        return _joined(files, source)
    reader = _READERS.get(files[0].suffix.lower())
    if reader is None:
        raise DataError(
            f"'{files[0].suffix or files[0].name}' is no table that can be read",
            where=source,
            fix="give parquet, jsonl, json, csv, tsv, txt or fasta",
        )
    return reader(files[0])


def parquet_classes(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names that a parquet file's metadata gives a column, in the two usual forms."""
    classes: dict[str, list[str]] = {}
    try:
        if b"classes" in metadata:
            classes["label"] = [str(name) for name in json.loads(metadata[b"classes"])]
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        for column, feature in features.items():
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
                classes[column] = [str(name) for name in feature["names"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # a note that cannot be read is no reason to refuse the rows
    return classes


def read_utf8(file: Path) -> str:
    """Return the text of a file without a byte-order mark; refuse bytes that are not UTF-8, by offset."""
    try:
        require_room(3 * file.stat().st_size, str(file))  # its bytes, its text, its rows
        data = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"it cannot be read ({error.strerror})", where=str(file), fix="check the file"
        ) from error
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise DataError("the file is empty", where=str(file), fix="give a file with at least one row")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = error.start + (3 if data.startswith(codecs.BOM_UTF8) else 0)
        line = data.count(b"\n", 0, offset) + 1
        raise DataError(
            f"byte {data[offset]:#04x} at offset {offset} (line {line}) is not UTF-8",
            where=str(file),
            fix="convert the file to UTF-8 (for example: iconv -f latin1 -t utf-8)",
        ) from error


def _read_txt(file: Path) -> DataTable:
    # only line feeds end a line: str.splitlines would also cut at form feeds and Unicode separators
    lines = [line.removesuffix("\r") for line in read_utf8(file).split("\n")]
    lines = [line for line in lines if line.strip()]
    return MemoryTable(str(file), {"text": lines}, len(lines))


def _read_fasta(file: Path) -> DataTable:
    columns = fasta_columns(read_utf8(file), str(file))
    return MemoryTable(str(file), columns, len(columns["id"]))


def _read_jsonl(file: Path) -> DataTable:
    objects = []
    for number, line in enumerate(read_utf8(file).split("\n"), 1):
        if line.strip():
            objects.append((f"line {number}", _parse_json(line, file, number)))
    return _table_of_objects(file, objects)


def _read_json(file: Path) -> DataTable:
    content = _parse_json(read_utf8(file), file, None)
    if not isinstance(content, list):
        raise DataError(
            "it holds no list of objects", where=str(file), fix="give a list of objects, or jsonl"
        )
    return _table_of_objects(file, [(f"row {number}", entry) for number, entry in enumerate(content, 1)])


def _parse_json(text: str, file: Path, line: int | None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        at = line if line is not None else getattr(error, "lineno", 1)
        raise DataError(
            f"line {at} is not JSON ({_fault(error)})",
            where=str(file),
            fix="mend the line",
        ) from error


def _fault(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(getattr(error, "msg", "a number of too many digits"))


def _table_of_objects(file: Path, objects: Sequence[tuple[str, Any]]) -> DataTable:
    names: dict[str, None] = {}
    for place, entry in objects:
        if not isinstance(entry, dict):
            raise DataError(
                f"{place} holds a {type(entry).__name__} and no object",
                where=str(file),
                fix='write {"text": …} rows',
            )
        names.update(dict.fromkeys(entry))
    columns = {name: [entry.get(name) for _, entry in objects] for name in names}
    return MemoryTable(str(file), columns, len(objects), folder=file.parent)


def _read_csv(file: Path) -> DataTable:
    reader = csv.reader(io.StringIO(read_utf8(file), newline=""), strict=True)
    csv.field_size_limit(1 << 30)
    rows: list[tuple[int, list[str]]] = []
    try:
        rows.extend((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise DataError(
            f"line {reader.line_num} is no valid csv ({error})", where=str(file), fix="mend its quotes"
        ) from error
    return _table_of_fields(file, rows)


def _read_tsv(file: Path) -> DataTable:
    lines = [line.removesuffix("\r") for line in read_utf8(file).split("\n")]
    rows = [
        (number, [_unquote(cell) for cell in line.split("\t")])
        for number, line in enumerate(lines, 1)
        if line
    ]
    return _table_of_fields(file, rows)


def _unquote(field: str) -> str:
    """Undo the quotes of writers that quote in tsv; a stray quote, as in plain tsv, stays as it is."""
    inner = field[1:-1]
    if len(field) >= 2 and field[0] == field[-1] == '"' and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return field


def _table_of_fields(file: Path, rows: Sequence[tuple[int, list[str]]]) -> DataTable:
    headed = not has_no_header(rows[0][1])
    if not headed:
        rows = [(0, column_names(file, rows)), *rows]
    names = [name.strip() for name in rows[0][1]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"the column '{twice}' occurs twice in the header",
            where=str(file),
            fix="give each column its own name",
        )
    for line, row in rows[1:]:
        if len(row) != len(names):
            raise DataError(
                f"line {line} has {len(row)} fields and the header has {len(names)}",
                where=str(file),
                fix="give every line the same fields (quote a field that holds the separator)",
            )
    columns = {name: [row[place] for _, row in rows[1:]] for place, name in enumerate(names)}
    table = MemoryTable(str(file), columns, len(rows) - 1, folder=file.parent)
    table.headed = headed
    return table


def _joined(files: Sequence[Path], source: str) -> DataTable:
    """Join small tables (not parquet), each of one split where the file names say so."""
    tables = [open_table([file]) for file in files]
    names = tables[0].names
    for table in tables:
        if table.names != names:
            raise DataError(
                f"its columns differ from those of {files[0].name}",
                where=table.source,
                fix="give files of one table",
            )
    columns: dict[str, Any] = {
        name: [value for table in tables for value in table.column(name).to_pylist()] for name in names
    }
    splits = _splits_of_files(files)
    if splits and "split" not in names:
        columns["split"] = [
            split for split, table in zip(splits, tables, strict=True) for _ in range(table.count)
        ]
    return MemoryTable(source, columns, sum(table.count for table in tables), folder=files[0].parent)


def _splits_of_files(files: Sequence[Path]) -> list[str] | None:
    """Return the split that each of several files is named after, or None when one is not."""
    if len(files) < 2:
        return None
    named = [_SPLIT_IN_NAME.findall(file.stem) or _SPLIT_IN_NAME.findall(file.parent.name) for file in files]
    return [split_name(words[-1]) for words in named] if all(named) else None


def _open_parquet(file: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    if not file.stat().st_size:
        raise DataError("the file is empty", where=str(file), fix="give a file with at least one row")
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _broken(str(file), error) from error


def _unpacked_bytes(file: Any, name: str) -> int:
    """Return what a column takes in memory, from its type and from what the file says of its pages."""
    data, field = file.metadata, file.schema_arrow.field(name)
    try:
        fixed = int(data.num_rows) * int(field.type.bit_width) // 8
    except ValueError:  # rows of different lengths
        fixed = int(data.num_rows)
    groups = [data.row_group(number) for number in range(data.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    named = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == name]
    return max(fixed, sum(int(chunk.total_uncompressed_size) for chunk in named))


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _broken(where: str, error: Exception) -> DataError:
    reason = str(error).strip().split("\n")[0].rstrip(".")[:120]
    return DataError(f"it is no readable parquet file ({reason})", where=where, fix="write or fetch it again")


_READERS: dict[str, Callable[[Path], DataTable]] = {
    ".txt": _read_txt,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    **dict.fromkeys(FASTA, _read_fasta),
}
