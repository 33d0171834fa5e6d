"""Parquet: one file, or a folder with or without hive partitions, local or wherever fsspec reaches.

It is written part by part by any number of processes; the target appears when all parts are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transship.errors import DataError, MissingError, OutputError
from transship.outside import complete
from transship.types import Array
from transship.verbs.translate.stores.files import INCOMPLETE, Files, locate
from transship.verbs.translate.stores.index import ArrayIndex
from transship.verbs.translate.stores.protocol import (
    ID_NAMES,
    TEXTS,
    PartRange,
    PartSink,
    RowBatch,
    SplitSource,
    Stamp,
    Store,
    StorePlace,
    VectorSource,
    find_column,
    goes_on,
    no_parquet,
    stamp_of,
    stamped,
    texts_instead,
    to_matrix,
    vanished,
    vector_column,
)

# rows of one part: what a kill can cost
PART_ROWS = 100_000
# workers that may die over one part before it is given up
DEATHS = 5


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
        with complete(place.text, "write it again"):
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
        except (OSError, ValueError, pa.ArrowException) as error:
            raise vanished(file, first + done, error) from error

    def path(self, name: str) -> str:
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


@dataclass(frozen=True)
class PartFileWriter:
    """What a process needs to write a part; it travels to workers.

    Attributes:
        system: where the target lies.
        work: the working folder.
        column: where the vectors go.
        stamp: what every row and file carries.
    """

    system: Files
    work: str
    column: str
    stamp: Stamp

    def write(self, part: PartRange, pieces: Iterable[tuple[RowBatch, Array]]) -> Iterator[int]:
        """Write a part, yielding its rows so far; it counts when its last row is in, and only then.

        Every try has a draft of its own, so that a worker taken for dead disturbs nobody; what the dead have
        left tells how many there were.
        """
        start = f"{self.work}/{part.start:012d}."
        if sum(name.endswith(".draft") for name in self.system.starting(start)) >= DEATHS:
            raise DataError(
                f"{DEATHS} workers died over the rows {part.start:,} to {part.stop:,}",
                where=self.work,
                fix="give the workers more memory, or pass a smaller --memory, and run it again",
            )
        draft = f"{start}{uuid.uuid4().hex[:12]}.draft"
        done = 0
        with contextlib.ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for batch, vectors in pieces:
                table = stamped(batch, vectors, self.column, self.stamp)
                if writer is None:
                    writer = stack.enter_context(self.system.write_parquet(draft, table.schema))
                writer.write_table(table)
                done += table.num_rows
                yield done
        if done != part.stop - part.start:
            raise DataError(
                f"gave {done:,} of the rows {part.start:,} to {part.stop:,}",
                where=self.work,
                fix="run it again when nobody writes to the source",
            )
        self.system.rename(draft, self.path(part.start))

    def kept(self, start: int) -> Path | None:
        """Return a file for what there is of the part that begins at a row; None on a remote file system."""
        return Path(f"{self.work}/{start:012d}.rows") if self.system.system is None else None

    def path(self, start: int) -> str:
        """Return the file of the part that begins at a row."""
        return f"{self.work}/{start:012d}.parquet"


class ParquetSink(PartSink):
    """Keeps parts in a working folder beside the target until the whole can be put into place.

    The parts of one input file are joined into one output file of the same name, so a folder keeps its
    partitions. Every part is written under another name and renamed: after a kill, whole parts count.
    """

    def __init__(
        self, place: StorePlace, source: VectorSource, stamp: Stamp, width: int, force: bool
    ) -> None:
        """Open or continue the working folder."""
        self.place, self.source, self.stamp, self.width, self.force = place, source, stamp, width, force
        self.system, self.target = locate(place.location)
        self.size = PART_ROWS if source.part_rows is None else source.part_rows
        # a target that is one file takes one; a folder keeps the source's files, or gets one
        self.single = PurePosixPath(self.target).suffix in (".parquet", ".pq")
        self.layout = self._layout(source)
        self.work = work_folder(self.target)
        if not self._arriving():
            kind: Literal["file", "folder"] = "file" if self.single else "folder"
            self.system.check(self.target, place.text, source.place.location, force=force, kind=kind)
        column = place.columns.vector or source.vector_column or "vector"
        self.writer: PartFileWriter = PartFileWriter(self.system, self.work, column, stamp)
        self._open_work()
        missing = self.missing()
        self.done = self._begun = missing[0].start if missing else source.rows
        self._open: pq.ParquetWriter | None = None

    def missing(self) -> list[PartRange]:
        """Return the parts that are still to be written, in order."""
        have = set(self.system.below(self.work))
        parts = [part for _, first, count in self.layout for part in self._parts(first, count)]
        return [part for part in parts if PurePosixPath(self.writer.path(part.start)).name not in have]

    def write(self, batch: RowBatch, vectors: Array) -> None:
        """Add rows to the current part; a part ends at its size or with its file."""
        table = stamped(batch, vectors, self.writer.column, self.stamp)
        while table.num_rows:
            end = self._part_end(self.done)
            piece, table = table.slice(0, end - self.done), table.slice(end - self.done)
            draft = f"{self.work}/{self._begun:012d}.draft"
            if self._open is None:
                self._open = self.system.write_parquet(draft, piece.schema)
            self._open.write_table(piece)
            self.done += piece.num_rows
            if self.done == end:
                self._open.close()
                self._open = None
                self.system.rename(draft, self.writer.path(self._begun))
                self._begun = self.done

    def finish(self) -> None:
        """Put the whole into place, and only then remove the parts."""
        self.system.make(self.system.parent(self.target))
        if self.system.system is not None and not self.single:
            self._publish_folder()
        else:
            whole = f"{self.work}/whole"
            self.system.remove(whole)
            for entry in self.layout:
                self._assemble(entry, f"{whole}/{entry[0]}")
            ready = f"{whole}/{self.layout[0][0]}" if self.single else whole
            self.system.put_in_place(ready, self.target, force=self.force)
        self.system.remove(self.work)

    def close(self) -> None:
        """Leave the whole parts for the next run; the open one is written again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # -- parts ---------------------------------------------------------------------------------------------

    def _layout(self, source: VectorSource) -> list[tuple[str, int, int]]:
        """Return (name, first row, rows) of every output file."""
        if not source.files or self.single:
            if any("=" in name for name, _ in source.files):
                raise OutputError(
                    "one file cannot keep the hive partitions of the source",
                    where=self.target,
                    fix="name a folder (without .parquet)",
                )
            name = PurePosixPath(self.target).name if self.single else "part-0.parquet"
            return [(name, 0, source.rows)]
        layout, first = [], 0
        for name, count in source.files:
            layout.append((name, first, count))
            first += count
        return [entry for entry in layout if entry[2]]

    def _open_work(self) -> None:
        note = f"{self.work}/work.json"
        whole = {"stamp": self.stamp.to_json(), "width": self.width, "layout": self.layout, "part": self.size}
        wanted = json.dumps(whole)
        left = self.system.read(note) if self.system.is_file(note) else None
        if not goes_on(left, wanted, self.work, force=self.force):
            self.system.remove(self.work)
            self.system.make(self.work)
            self.system.write(note, wanted)
        for name in self.system.below(self.work):
            if name.endswith(".draft"):
                self.system.remove(f"{self.work}/{name}")

    def _arriving(self) -> bool:
        """Return whether the target is a remote folder whose files a stopped run began to put there."""
        return self.system.is_file(f"{self.target}/{INCOMPLETE}") and self.system.exists(self.work)

    def _parts(self, first: int, count: int) -> list[PartRange]:
        stop = first + count
        return [PartRange(start, min(start + self.size, stop)) for start in range(first, stop, self.size)]

    def _part_end(self, row: int) -> int:
        _, first, count = next(entry for entry in self.layout if entry[1] <= row < entry[1] + entry[2])
        return min(first + ((row - first) // self.size + 1) * self.size, first + count)

    def _assemble(self, entry: tuple[str, int, int], goal: str) -> None:
        """Make one output file from its parts."""
        _, first, count = entry
        self.system.make(self.system.parent(goal))
        parts = [self.writer.path(part.start) for part in self._parts(first, count)]
        if len(parts) == 1:
            self.system.copy(parts[0], goal)
            return
        with contextlib.ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for opened in (stack.enter_context(self.system.read_parquet(part)) for part in parts):
                for record in opened.iter_batches(16384, use_threads=False):
                    if writer is None:
                        writer = stack.enter_context(self.system.write_parquet(goal, opened.schema_arrow))
                    writer.write_batch(record)

    def _publish_folder(self) -> None:
        """Put files into a remote folder, which cannot be renamed: a mark stands in it until the last is."""
        if self.force and not self._arriving():
            self.system.remove(self.target)
        self.system.make(self.target)
        self.system.write(f"{self.target}/{INCOMPLETE}", self.stamp.to_json())
        for entry in self.layout:
            self._assemble(entry, f"{self.target}/{entry[0]}")
        self.system.remove(f"{self.target}/{INCOMPLETE}")


def work_folder(target: str) -> str:
    """Return where the parts of a target lie until it is whole."""
    return Files.beside(target, f".{PurePosixPath(target).name}.partial")


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
    paths = map(PurePosixPath, files)
    names = [str(path) for path in paths if path.suffix == ".parquet" and path.name[0] not in "._"]
    if not names:
        raise no_parquet(files, place.text)
    return names


def _footer(system: Files, path: str) -> pq.ParquetFile:
    try:
        return system.read_parquet(path)
    except (OSError, pa.ArrowException) as error:
        if (ending := PurePosixPath(path).suffix.lower()) in TEXTS:
            raise texts_instead(path, ending) from error
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


STORE = Store(
    ParquetSource, ParquetSink, index=lambda place: ArrayIndex.of(ParquetSource(place)), sweep=sweep
)
