"""Parquet: one file, or a folder with or without hive partitions, local or wherever fsspec reaches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transship.errors import DataError, MissingError
from transship.verbs.translate.stores.array_index import ArrayIndex
from transship.verbs.translate.stores.arrow import stamp_of, to_matrix, vector_column
from transship.verbs.translate.stores.files import INCOMPLETE, Files, locate
from transship.verbs.translate.stores.parquet_sink import ParquetSink, work_folder
from transship.verbs.translate.stores.protocol import (
    ID_NAMES,
    RowBatch,
    SplitSource,
    StorePlace,
    find_column,
    vanished,
)


class ParquetSource(SplitSource):
    """Rows of one file, or of all `*.parquet` files of a folder in the order of their names."""

    def __init__(self, place: StorePlace) -> None:
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
        self.files = tuple(zip(self.names, self.counts, strict=True))
        self.id_column = find_column(self.schema.names, place.columns.id, ID_NAMES, place.text)
        self.vector_column = vector_column(self.schema, place)
        self.width = self._width()
        self.stamp = stamp_of(self.schema)

    def fingerprint(self) -> str:
        """Return a hash of names, sizes and row counts of the files."""
        digest = hashlib.sha256()
        for name, count in self.files:
            digest.update(f"{name} {self.system.token(self.path(name))} {count}\n".encode())
        return digest.hexdigest()[:32]

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[RowBatch]:
        """Yield the rows from `start` up to `stop`; row groups before and after are not read."""
        stop = self.rows if stop is None else stop
        before = 0
        for name, count in self.files:
            if start < before + count and stop > before:
                inside = range(max(0, start - before), min(count, stop - before))
                yield from self.file_batches(self.path(name), size, inside, before)
            before += count

    def file_batches(self, file: str, size: int, rows: range, first: int = 0) -> Iterator[RowBatch]:
        """Yield some rows of one file; `first` is the number of its first row in the whole."""
        done = rows.start
        try:
            with self.system.read_parquet(file) as opened:
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
            raise vanished(file, first + done, error) from error

    def path(self, name: str) -> str:
        """Return the path of one of the files."""
        return self.root if self.single else f"{self.root}/{name}"

    def _batch(self, record: pa.RecordBatch, first: int) -> RowBatch:
        vectors = to_matrix(record.column(self.vector_column), self.width, self.place.text)
        ids = record.column(self.id_column) if self.id_column else np.arange(first, first + len(record))
        return RowBatch(ids if not isinstance(ids, pa.Array) else ids.to_pylist(), vectors, record)

    def _width(self) -> int:
        kind = self.schema.field(self.vector_column).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        if not self.rows:
            return 0
        name = next(name for name, count in self.files if count)
        with self.system.read_parquet(self.path(name)) as opened:
            first = next(opened.iter_batches(1, columns=[self.vector_column])).column(0)[0]
        if not first.is_valid:
            raise DataError(
                "the first vector is missing", where=self.place.text, fix="remove rows without vectors"
            )
        return len(first)


open_source, open_sink = ParquetSource, ParquetSink


def open_index(place: StorePlace) -> ArrayIndex:
    """Return the rows as an index in memory."""
    return ArrayIndex.of(ParquetSource(place))


def held_bytes(rows: int, width: int) -> int:
    """Return 0: rows are written batch by batch."""
    return 0


def sweep(place: StorePlace) -> None:
    """Remove what a run had no time to remove after its last rename."""
    system, path = locate(place.location)
    system.remove(work_folder(path))


def _names(system: Files, root: str, place: StorePlace) -> list[str]:
    if system.is_file(root):
        return [PurePosixPath(root).name]
    if not system.is_folder(root):
        raise MissingError("there is no such file or folder", where=place.text, fix="check the path")
    files = system.below(root)
    if INCOMPLETE in files:
        raise DataError(
            "is not whole yet: its files are still arriving",
            where=place.text,
            fix="wait, or run the command that writes it again",
        )
    names = [name for name in files if _is_data(PurePosixPath(name))]
    if not names:
        raise DataError("holds no .parquet file", where=place.text, fix="give a folder of Parquet files")
    return names


def _is_data(name: PurePosixPath) -> bool:
    return name.suffix == ".parquet" and not name.name.startswith((".", "_"))


def _footer(system: Files, path: str) -> pq.ParquetFile:
    try:
        return system.read_parquet(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError("is not a readable Parquet file", where=path, fix="write it again") from error


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
