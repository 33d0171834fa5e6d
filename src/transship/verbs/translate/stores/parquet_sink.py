"""Parquet, written part by part by any number of processes; the target appears when all parts are there."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transship.errors import DataError, OutputError
from transship.verbs.translate.stores.files import INCOMPLETE, Files, locate
from transship.verbs.translate.stores.parquet import ParquetSource, as_table, read_parquet, work_folder
from transship.verbs.translate.stores.protocol import (
    MAP_COLUMN,
    MODEL_COLUMN,
    STAMP_KEY,
    Array,
    Batch,
    Place,
    Source,
    Stamp,
    refuse_half_done,
)

# workers that may die over one part before it is given up
DEATHS = 5


class Part(NamedTuple):
    """Rows [start, stop) of the whole, which one process writes into one file of the working folder."""

    start: int
    stop: int


@dataclass(frozen=True)
class PartWriter:
    """What a process needs to write a part; it travels to workers.

    Attributes:
        system: where the target lies.
        work: the working folder.
        column: where the vectors go.
        width: theirs.
        stamp: what every row and file carries.
    """

    system: Files
    work: str
    column: str
    width: int
    stamp: Stamp

    def write(self, part: Part, pieces: Iterable[tuple[Batch, Array]]) -> Iterator[int]:
        """Write a part, yielding its rows so far; it counts when its last row is in, and only then.

        Every try has a draft of its own, so that a worker taken for dead disturbs nobody; what the dead have
        left tells how many there were.
        """
        self._check_deaths(part)
        draft = f"{self._try(part)}{uuid.uuid4().hex[:12]}.draft"
        done = 0
        with contextlib.ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for batch, vectors in pieces:
                table = self.table(batch, vectors)
                if writer is None:
                    writer = stack.enter_context(open_writer(self.system, draft, table.schema))
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

    def path(self, start: int) -> str:
        """Return the file of the part that begins at a row."""
        return f"{self.work}/{start:012d}.parquet"

    def table(self, batch: Batch, vectors: Array) -> pa.Table:
        """Return rows as they are stored: all columns, the new vectors, whose they are."""
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

    def _try(self, part: Part) -> str:
        return f"{self.work}/{part.start:012d}."

    def _check_deaths(self, part: Part) -> None:
        tries = self.system.starting(self._try(part))
        if len([name for name in tries if name.endswith(".draft")]) >= DEATHS:
            raise DataError(
                f"{DEATHS} workers died over the rows {part.start:,} to {part.stop:,}",
                where=self.work,
                fix="give the workers more memory, or pass a smaller --memory, and run it again",
            )


@dataclass
class ParquetSink:
    """Keeps parts in a working folder beside the target until the whole can be put into place.

    The parts of one input file are joined into one output file of the same name, so a folder keeps its
    partitions. Every part is written under another name and renamed: after a kill, whole parts count.
    """

    place: Place
    source: Source
    stamp: Stamp
    width: int
    force: bool
    size: int
    done: int = field(init=False)

    def __post_init__(self) -> None:
        """Open or continue the working folder."""
        self.system, self.target = locate(self.place.location)
        self.size = int(getattr(self.source, "part_rows", self.size))
        # a target that is one file takes one; a folder keeps the source's files, or gets one
        self.single = PurePosixPath(self.target).suffix in (".parquet", ".pq")
        self.layout = self._layout(self.source)
        self.work = work_folder(self.target)
        if self.system.exists(self.target) and not (self.force or self._arriving()):
            raise OutputError(
                "exists already", where=self.place.text, fix="choose another name, or pass --force"
            )
        column = self.place.columns.vector or getattr(self.source, "vector_column", None) or "vector"
        self.writer = PartWriter(self.system, self.work, column, self.width, self.stamp)
        self._open_work()
        missing = self.missing()
        self.done = missing[0].start if missing else self.source.rows
        self._open: pq.ParquetWriter | None = None
        self._begun = self.done

    def missing(self) -> list[Part]:
        """Return the parts that are still to be written, in order."""
        have = set(self.system.below(self.work))
        parts = [part for _, first, count in self.layout for part in self._parts(first, count)]
        return [part for part in parts if PurePosixPath(self.writer.path(part.start)).name not in have]

    def write(self, batch: Batch, vectors: Array) -> None:
        """Add rows to the current part; a part ends at its size or with its file."""
        table = self.writer.table(batch, vectors)
        while table.num_rows:
            end = self._part_end(self.done)
            piece, table = table.slice(0, end - self.done), table.slice(end - self.done)
            if self._open is None:
                self._open = open_writer(self.system, self._draft, piece.schema)
            self._open.write_table(piece)
            self.done += piece.num_rows
            if self.done == end:
                self._open.close()
                self._open = None
                self.system.rename(self._draft, self.writer.path(self._begun))
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
            made = f"{whole}/{self.layout[0][0]}" if self.single else whole
            self.system.remove(self.target)
            if self.system.system is None:
                os.replace(made, self.target)
            else:
                self.system.rename(made, self.target)
        self.system.remove(self.work)

    def close(self) -> None:
        """Leave the whole parts for the next run; the open one is written again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # -- parts ---------------------------------------------------------------------------------------------

    def _layout(self, source: Source) -> list[tuple[str, int, int]]:
        """Return (name, first row, rows) of every output file."""
        if not isinstance(source, ParquetSource) or self.single:
            if isinstance(source, ParquetSource) and any("=" in name for name in source.names):
                raise OutputError(
                    "one file cannot keep the hive partitions of the source",
                    where=self.target,
                    fix="name a folder (without .parquet)",
                )
            name = PurePosixPath(self.target).name if self.single else "part-0.parquet"
            return [(name, 0, source.rows)]
        layout, first = [], 0
        for name, count in zip(source.names, source.counts, strict=True):
            layout.append((name, first, count))
            first += count
        return [entry for entry in layout if entry[2]]

    def _open_work(self) -> None:
        note = f"{self.work}/work.json"
        wanted = {
            "stamp": self.stamp.to_json(),
            "width": self.width,
            "layout": [list(entry) for entry in self.layout],
            "part": self.size,
        }
        if self.system.exists(self.work):
            known = self.system.is_file(note)
            same = known and json.loads(self.system.read(note) or "null") == wanted
            if known and not same and not self.force:
                raise refuse_half_done(self.work)
            if not same:
                self.system.remove(self.work)
        if not self.system.is_file(note):
            self.system.make(self.work)
            self.system.write(note, json.dumps(wanted))
        for left in self.system.below(self.work):
            if left.endswith(".draft"):
                self.system.remove(f"{self.work}/{left}")

    def _arriving(self) -> bool:
        """Return whether the target is a remote folder whose files a stopped run began to put there."""
        return self.system.is_file(f"{self.target}/{INCOMPLETE}") and self.system.exists(self.work)

    def _parts(self, first: int, count: int) -> list[Part]:
        stop = first + count
        return [Part(start, min(start + self.size, stop)) for start in range(first, stop, self.size)]

    def _part_end(self, row: int) -> int:
        _, first, count = next(entry for entry in self.layout if entry[1] <= row < entry[1] + entry[2])
        return min(first + ((row - first) // self.size + 1) * self.size, first + count)

    @property
    def _draft(self) -> str:
        return f"{self.work}/{self._begun:012d}.draft"

    def _assemble(self, entry: tuple[str, int, int], goal: str) -> None:
        """Make one output file from its parts."""
        _, first, count = entry
        self.system.make(self.system.parent(goal))
        parts = [self.writer.path(part.start) for part in self._parts(first, count)]
        if len(parts) == 1:
            self.system.copy(parts[0], goal)
        else:
            _join(self.system, parts, goal)

    def _publish_folder(self) -> None:
        """Put files into a remote folder, which cannot be renamed: a mark stands in it until the last is."""
        if self.force and not self._arriving():
            self.system.remove(self.target)
        self.system.make(self.target)
        self.system.write(f"{self.target}/{INCOMPLETE}", self.stamp.to_json())
        for entry in self.layout:
            self._assemble(entry, f"{self.target}/{entry[0]}")
        self.system.remove(f"{self.target}/{INCOMPLETE}")


def open_writer(system: Files, path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a writer: floats neither shrink nor repeat, so lists are stored as they are."""
    flat = [column.name for column in schema if not pa.types.is_nested(column.type)]
    return pq.ParquetWriter(
        path,
        schema,
        filesystem=system.system,
        compression=dict.fromkeys(flat, "zstd"),
        use_dictionary=flat,
        write_statistics=flat,
    )


def _join(system: Files, parts: list[str], goal: str) -> None:
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for part in parts:
            with read_parquet(system, part) as opened:
                for record in opened.iter_batches(16384, use_threads=False):
                    if writer is None:
                        writer = stack.enter_context(open_writer(system, goal, opened.schema_arrow))
                    writer.write_batch(record)
