"""Parquet: one file, or a folder with or without hive partitions; translated file by file, part by part."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transship.errors import DataError, MissingError, OutputError
from transship.verbs.translate.stores.protocol import (
    ID_NAMES,
    MAP_COLUMN,
    MODEL_COLUMN,
    STAMP_KEY,
    VECTOR_NAMES,
    Array,
    Batch,
    Place,
    Source,
    Stamp,
    find_column,
    gone,
    refuse_half_done,
)

# rows of one part: what a kill can cost
PART_ROWS = 100_000


class ParquetSource:
    """Rows of one file, or of all `*.parquet` files of a folder in the order of their names."""

    def __init__(self, place: Place) -> None:
        """Read the footers; no rows yet."""
        self.place, self.root = place, Path(place.location)
        self.files = _files(place)
        footers = [_footer(file) for file in self.files]
        self.counts = [footer.metadata.num_rows for footer in footers]
        self.rows = sum(self.counts)
        self.schema: pa.Schema = footers[0].schema_arrow
        for file, footer in zip(self.files, footers, strict=True):
            if not footer.schema_arrow.equals(self.schema):
                raise DataError(
                    f"has other columns than {self.files[0].name}",
                    where=str(file),
                    fix="give files of one schema",
                )
            footer.close()
        names = self.schema.names
        self.id_column = find_column(names, place.columns.id, ID_NAMES, "id", place.text)
        self.vector_column = self._vector_column(names)
        self.width = self._width()
        self.stamp = Stamp.from_json((self.schema.metadata or {}).get(STAMP_KEY.encode()))

    def fingerprint(self) -> str:
        """Return a hash of names, sizes and row counts of the files."""
        digest = hashlib.sha256()
        for file, count in zip(self.files, self.counts, strict=True):
            status = file.stat()
            digest.update(f"{self._name(file)} {status.st_size} {status.st_mtime_ns} {count}\n".encode())
        return digest.hexdigest()[:32]

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield rows; row groups before `start` are not read."""
        before = 0
        for file, count in zip(self.files, self.counts, strict=True):
            if start < before + count:
                yield from self.file_batches(file, size, max(0, start - before), before)
            before += count

    def file_batches(self, file: Path, size: int, start: int = 0, first: int = 0) -> Iterator[Batch]:
        """Yield the rows of one file from its row `start` on; `first` is its first row's number."""
        done = start
        try:
            with pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as opened:
                groups, skipped = _groups_from(opened.metadata, start)
                left = start - skipped
                for record in opened.iter_batches(size, row_groups=groups, use_threads=False):
                    if left >= len(record):
                        left -= len(record)
                        continue
                    record, left = record.slice(left), 0
                    yield self._batch(record, first + done)
                    done += len(record)
        except (OSError, pa.ArrowException) as error:
            raise gone(str(file), first + done, error) from error

    def close(self) -> None:
        """Nothing is kept open."""

    def _name(self, file: Path) -> str:
        return file.name if file == self.root else file.relative_to(self.root).as_posix()

    def _batch(self, record: pa.RecordBatch, first: int) -> Batch:
        vectors = to_matrix(record.column(self.vector_column), self.width, self.place.text)
        ids = record.column(self.id_column) if self.id_column else np.arange(first, first + len(record))
        return Batch(ids if not isinstance(ids, pa.Array) else ids.to_pylist(), vectors, record)

    def _vector_column(self, names: list[str]) -> str:
        found = find_column(names, self.place.columns.vector, VECTOR_NAMES, "vector", self.place.text)
        lists = [field.name for field in self.schema if _is_vector(field.type)]
        if found is None and len(lists) == 1:
            found = lists[0]
        if found is None or found not in lists:
            raise DataError(
                f"has no column of vectors{'' if found is None else f' in {found!r}'}",
                where=self.place.text,
                fix=f"name it with --vector-column; there are: {', '.join(names)}",
            )
        return found

    def _width(self) -> int:
        kind = self.schema.field(self.vector_column).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        if not self.rows:
            return 0
        with pq.ParquetFile(next(f for f, n in zip(self.files, self.counts, strict=True) if n)) as opened:
            first = next(opened.iter_batches(1, columns=[self.vector_column])).column(0)[0]
        if not first.is_valid:
            raise DataError(
                "the first vector is missing", where=self.place.text, fix="remove rows without vectors"
            )
        return len(first)


class ParquetSink:
    """Writes parts into a working folder beside the target; the target appears when all parts are there.

    The parts of one input file are joined into one output file of the same name, so a folder keeps its
    partitions. Every part is written under another name and renamed: after a kill, whole parts count.
    """

    def __init__(self, place: Place, source: Source, stamp: Stamp, width: int, force: bool) -> None:
        """Open or continue the working folder."""
        self.target, self.stamp, self.width = Path(place.location), stamp, width
        self.column = place.columns.vector or getattr(source, "vector_column", None) or "vector"
        self.force, self.source = force, source
        self.size = int(getattr(source, "part_rows", PART_ROWS))
        # a target that is one file takes one; a folder keeps the source's files, or gets one
        self.single = self.target.suffix in (".parquet", ".pq")
        self.layout = self._layout(source)
        if self.target.exists() and not force:
            raise OutputError("exists already", where=place.text, fix="choose another name, or pass --force")
        self.work = self.target.with_name(f".{self.target.name}.partial")
        self._open_work(stamp, force)
        self.writer: pq.ParquetWriter | None = None
        self.done = self.done_at_part = self._whole_rows()
        self.part_rows = 0

    def write(self, batch: Batch, vectors: Array) -> None:
        """Add rows to the current part; a part ends at its size or with its file."""
        table = self._table(batch, vectors)
        while table.num_rows:
            room = self._part_end(self.done) - self.done
            piece, table = table.slice(0, room), table.slice(room)
            if self.writer is None:
                self.writer = _writer(self._draft(), piece.schema)
            self.writer.write_table(piece)
            self.done += piece.num_rows
            if self.done == self._part_end(self.done_at_part):
                self._end_part()

    def finish(self) -> None:
        """Join the parts of each file and rename the whole into place."""
        whole = self.work / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        for name, first, count in self.layout:
            goal = whole / name
            goal.parent.mkdir(parents=True, exist_ok=True)
            parts = [self._part(start) for start in range(first, first + count, self.size)]
            if len(parts) == 1:
                os.link(parts[0], goal)
            else:
                _join(parts, goal)
        made = whole / self.layout[0][0] if self.single else whole
        if self.target.exists():
            _remove(self.target)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(made, self.target)
        shutil.rmtree(self.work, ignore_errors=True)

    def close(self) -> None:
        """Leave the whole parts for the next run; the open one is written again."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    # -- parts ---------------------------------------------------------------------------------------------

    def _layout(self, source: Source) -> list[tuple[str, int, int]]:
        """Return (name, first row, rows) of every output file."""
        if not isinstance(source, ParquetSource) or self.single:
            if isinstance(source, ParquetSource) and any("=" in source._name(file) for file in source.files):
                raise OutputError(
                    "one file cannot keep the hive partitions of the source",
                    where=str(self.target),
                    fix="name a folder (without .parquet)",
                )
            return [(self.target.name if self.single else "part-0.parquet", 0, source.rows)]
        layout, first = [], 0
        for file, count in zip(source.files, source.counts, strict=True):
            layout.append((source._name(file), first, count))
            first += count
        return [entry for entry in layout if entry[2]]

    def _open_work(self, stamp: Stamp, force: bool) -> None:
        note = self.work / "work.json"
        wanted = json.dumps(
            {"stamp": stamp.to_json(), "width": self.width, "layout": self.layout, "part": self.size}
        )
        if self.work.exists():
            same = note.is_file() and json.loads(note.read_text() or "null") == json.loads(wanted)
            if not same and note.is_file() and not force:
                raise refuse_half_done(str(self.work))
            if not same:
                shutil.rmtree(self.work)
        if not self.work.exists():
            self.work.mkdir(parents=True)
            draft = self.work / "work.draft"
            draft.write_text(wanted)
            os.replace(draft, note)
        for left in self.work.glob("*.draft"):
            left.unlink()

    def _whole_rows(self) -> int:
        """Return how many rows the unbroken run of whole parts holds."""
        for _, first, count in self.layout:
            for start in range(first, first + count, self.size):
                if not self._part(start).is_file():
                    return start
        return sum(count for _, _, count in self.layout)

    def _part(self, start: int) -> Path:
        return self.work / f"{start:012d}.parquet"

    def _draft(self) -> Path:
        return self.work / f"{self.done_at_part:012d}.draft"

    def _part_end(self, row: int) -> int:
        _, first, count = next(entry for entry in self.layout if entry[1] <= row < entry[1] + entry[2])
        return min(first + ((row - first) // self.size + 1) * self.size, first + count)

    def _end_part(self) -> None:
        assert self.writer is not None
        self.writer.close()
        self.writer = None
        draft = self._draft()
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, self._part(self.done_at_part))
        self.done_at_part = self.done

    def _table(self, batch: Batch, vectors: Array) -> pa.Table:
        kind = pa.list_(pa.float32(), self.width)
        values = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(values, self.width)
        table = as_table(batch)
        if self.column in table.column_names:
            table = table.set_column(
                table.column_names.index(self.column), pa.field(self.column, kind), column
            )
        else:
            table = table.append_column(pa.field(self.column, kind), column)
        for name, value in ((MODEL_COLUMN, self.stamp.model), (MAP_COLUMN, self.stamp.map)):
            if name in table.column_names:
                table = table.drop_columns([name])
            # plain strings: Parquet's own dictionary keeps them small
            table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
        metadata = {**(table.schema.metadata or {}), STAMP_KEY.encode(): self.stamp.to_json().encode()}
        return table.replace_schema_metadata(metadata)


def open_source(place: Place) -> ParquetSource:
    """Open a file or folder for reading."""
    return ParquetSource(place)


def open_sink(place: Place, source: Source, stamp: Stamp, *, width: int, force: bool) -> ParquetSink:
    """Open a file or folder for writing."""
    return ParquetSink(place, source, stamp, width, force)


def as_table(batch: Batch) -> pa.Table:
    """Return a batch's rows as a table: its columns, or its ids and payloads."""
    if batch.columns is not None:
        return (
            pa.Table.from_batches([batch.columns])
            if isinstance(batch.columns, pa.RecordBatch)
            else batch.columns
        )
    columns: dict[str, Any] = {
        "id": pa.array(list(batch.ids) if not isinstance(batch.ids, np.ndarray) else batch.ids)
    }
    if batch.payloads is not None:
        columns["payload"] = pa.array([json.dumps(payload, default=str) for payload in batch.payloads])
    return pa.table(columns)


def to_matrix(column: Any, width: int, where: str) -> Array:
    """Return a list column as [rows, width]; missing or ragged vectors are refused."""
    if column.null_count:
        raise DataError(
            f"{column.null_count} rows have no vector",
            where=where,
            fix="remove rows without vectors, or embed them",
        )
    flat = column.flatten()
    if len(flat) != len(column) * width or (
        not pa.types.is_fixed_size_list(column.type) and len(set(column.value_lengths().to_pylist())) > 1
    ):
        raise DataError(f"vectors are not all {width} wide", where=where, fix="give vectors of one model")
    values: Array = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), width)


def _files(place: Place) -> list[Path]:
    root = Path(place.location)
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise MissingError("there is no such file or folder", where=place.text, fix="check the path")
    files = sorted(file for file in root.rglob("*.parquet") if not file.name.startswith((".", "_")))
    if not files:
        raise DataError("holds no .parquet file", where=place.text, fix="give a folder of Parquet files")
    return files


def _footer(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError("is not a readable Parquet file", where=str(file), fix="write it again") from error


def _is_vector(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and pa.types.is_floating(kind.value_type))


def _groups_from(metadata: Any, start: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows from `start` on, and how many rows come before them."""
    before = 0
    for group in range(metadata.num_row_groups):
        count = metadata.row_group(group).num_rows
        if before + count > start:
            return list(range(group, metadata.num_row_groups)), before
        before += count
    return [], before


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a writer: floats neither shrink nor repeat, so lists are stored as they are."""
    flat = [field.name for field in schema if not pa.types.is_nested(field.type)]
    return pq.ParquetWriter(
        path, schema, compression=dict.fromkeys(flat, "zstd"), use_dictionary=flat, write_statistics=flat
    )


def _join(parts: list[Path], goal: Path) -> None:
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for part in parts:
            with pq.ParquetFile(part, buffer_size=1 << 20, pre_buffer=False) as opened:
                for record in opened.iter_batches(16384, use_threads=False):
                    if writer is None:
                        schema = opened.schema_arrow
                        writer = stack.enter_context(_writer(goal, schema))
                    writer.write_batch(record)


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
