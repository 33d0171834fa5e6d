"""Parquet: one file, or a folder with or without hive partitions, local or wherever fsspec reaches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transship.errors import DataError, MissingError
from transship.verbs.translate.stores.files import INCOMPLETE, Files, locate
from transship.verbs.translate.stores.protocol import (
    ID_NAMES,
    STAMP_KEY,
    VECTOR_NAMES,
    Array,
    Batch,
    Place,
    Source,
    Stamp,
    find_column,
    gone,
)

if TYPE_CHECKING:
    from transship.verbs.translate.stores.parquet_sink import ParquetSink

# rows of one part: what a kill can cost
PART_ROWS = 100_000


class ParquetSource:
    """Rows of one file, or of all `*.parquet` files of a folder in the order of their names."""

    def __init__(self, place: Place) -> None:
        """Read the footers; no rows yet."""
        self.place = place
        self.system, self.root = locate(place.location)
        self.single = self.system.is_file(self.root)
        # relative to the folder; a single file has its own name
        self.names = _names(self.system, self.root, place)
        self.counts: list[int] = []
        for name in self.names:
            with _footer(self.system, self.path(name)) as footer:
                if not self.counts:
                    self.schema: pa.Schema = footer.schema_arrow
                elif not footer.schema_arrow.equals(self.schema):
                    raise DataError(
                        f"has other columns than {PurePosixPath(self.names[0]).name}",
                        where=self.path(name),
                        fix="give files of one schema",
                    )
                self.counts.append(footer.metadata.num_rows)
        self.rows = sum(self.counts)
        columns = self.schema.names
        self.id_column = find_column(columns, place.columns.id, ID_NAMES, "id", place.text)
        self.vector_column = self._vector_column(columns)
        self.width = self._width()
        self.stamp = Stamp.from_json((self.schema.metadata or {}).get(STAMP_KEY.encode()))

    def fingerprint(self) -> str:
        """Return a hash of names, sizes and row counts of the files."""
        digest = hashlib.sha256()
        for name, count in zip(self.names, self.counts, strict=True):
            digest.update(f"{name} {self.system.token(self.path(name))} {count}\n".encode())
        return digest.hexdigest()[:32]

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Yield the rows from `start` up to `stop`; row groups before and after are not read."""
        stop = self.rows if stop is None else stop
        before = 0
        for name, count in zip(self.names, self.counts, strict=True):
            if start < before + count and stop > before:
                inside = range(max(0, start - before), min(count, stop - before))
                yield from self.file_batches(self.path(name), size, inside, before)
            before += count

    def file_batches(self, file: str, size: int, rows: range, first: int = 0) -> Iterator[Batch]:
        """Yield some rows of one file; `first` is the number of its first row in the whole."""
        done = rows.start
        try:
            with read_parquet(self.system, file) as opened:
                groups, skipped = _groups_of(opened.metadata, rows)
                left = rows.start - skipped
                for record in opened.iter_batches(size, row_groups=groups, use_threads=False):
                    if left >= len(record):
                        left -= len(record)
                        continue
                    record, left = record.slice(left, rows.stop - done), 0
                    if len(record):
                        yield self._batch(record, first + done)
                    done += len(record)
        except (OSError, pa.ArrowException) as error:
            raise gone(file, first + done, error) from error

    def close(self) -> None:
        """Nothing is kept open."""

    def path(self, name: str) -> str:
        """Return the path of one of the files."""
        return self.root if self.single else f"{self.root}/{name}"

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
        name = next(name for name, count in zip(self.names, self.counts, strict=True) if count)
        with read_parquet(self.system, self.path(name)) as opened:
            first = next(opened.iter_batches(1, columns=[self.vector_column])).column(0)[0]
        if not first.is_valid:
            raise DataError(
                "the first vector is missing", where=self.place.text, fix="remove rows without vectors"
            )
        return len(first)


def open_source(place: Place) -> ParquetSource:
    """Open a file or folder for reading."""
    return ParquetSource(place)


def open_sink(place: Place, source: Source, stamp: Stamp, *, width: int, force: bool) -> ParquetSink:
    """Open a file or folder for writing."""
    from transship.verbs.translate.stores.parquet_sink import ParquetSink

    return ParquetSink(place, source, stamp, width, force, PART_ROWS)


def read_parquet(system: Files, path: str) -> pq.ParquetFile:
    """Open a file for reading part by part, with little memory."""
    return pq.ParquetFile(path, filesystem=system.system, buffer_size=1 << 20, pre_buffer=False)


def sweep(place: Place) -> None:
    """Remove what a run had no time to remove after its last rename."""
    system, path = locate(place.location)
    system.remove(work_folder(path))


def work_folder(target: str) -> str:
    """Return where the parts of a target lie until it is whole."""
    return Files.beside(target, f".{PurePosixPath(target).name}.partial")


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


def _names(system: Files, root: str, place: Place) -> list[str]:
    if system.is_file(root):
        return [PurePosixPath(root).name]
    if not system.is_folder(root):
        raise MissingError("there is no such file or folder", where=place.text, fix="check the path")
    found = system.below(root)
    if INCOMPLETE in found:
        raise DataError(
            "is not whole yet: its files are still arriving",
            where=place.text,
            fix="wait, or run the command that writes it again",
        )
    names = [name for name in found if _is_data(PurePosixPath(name))]
    if not names:
        raise DataError("holds no .parquet file", where=place.text, fix="give a folder of Parquet files")
    return names


def _is_data(name: PurePosixPath) -> bool:
    return name.suffix == ".parquet" and not name.name.startswith((".", "_"))


def _footer(system: Files, path: str) -> pq.ParquetFile:
    try:
        return read_parquet(system, path)
    except (OSError, pa.ArrowException) as error:
        raise DataError("is not a readable Parquet file", where=path, fix="write it again") from error


def _is_vector(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and pa.types.is_floating(kind.value_type))


def _groups_of(metadata: Any, rows: range) -> tuple[list[int], int]:
    """Return the row groups that hold some of the rows, and how many rows come before them."""
    groups, before, skipped = [], 0, 0
    for group in range(metadata.num_row_groups):
        count = metadata.row_group(group).num_rows
        if before + count <= rows.start:
            skipped += count
        elif before < rows.stop:
            groups.append(group)
        before += count
    return groups, skipped
