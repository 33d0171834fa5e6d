"""Parquet, written part by part by any number of processes; the target appears when all parts are there."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow.parquet as pq

from transship.errors import DataError, OutputError
from transship.types import Array
from transship.verbs.translate.stores.arrow import stamped
from transship.verbs.translate.stores.files import INCOMPLETE, Files, locate
from transship.verbs.translate.stores.protocol import (
    PartRange,
    PartSink,
    RowBatch,
    Stamp,
    StorePlace,
    VectorSource,
    refuse_half_done,
)

# rows of one part: what a kill can cost
PART_ROWS = 100_000
# workers that may die over one part before it is given up
DEATHS = 5


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
        self._check_deaths(part)
        draft = f"{self._try(part)}{uuid.uuid4().hex[:12]}.draft"
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

    def path(self, start: int) -> str:
        """Return the file of the part that begins at a row."""
        return f"{self.work}/{start:012d}.parquet"

    def _try(self, part: PartRange) -> str:
        return f"{self.work}/{part.start:012d}."

    def _check_deaths(self, part: PartRange) -> None:
        tries = self.system.starting(self._try(part))
        if len([name for name in tries if name.endswith(".draft")]) >= DEATHS:
            raise DataError(
                f"{DEATHS} workers died over the rows {part.start:,} to {part.stop:,}",
                where=self.work,
                fix="give the workers more memory, or pass a smaller --memory, and run it again",
            )


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
        if self.system.exists(self.target) and not (force or self._arriving()):
            raise OutputError(
                "it exists already",
                where=place.text,
                fix="pass --force to replace it, or choose another name",
            )
        column = place.columns.vector or source.vector_column or "vector"
        self.writer: PartFileWriter = PartFileWriter(self.system, self.work, column, stamp)
        self._open_work()
        missing = self.missing()
        self.done = missing[0].start if missing else source.rows
        self._open: pq.ParquetWriter | None = None
        self._begun = self.done

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
            if self._open is None:
                self._open = self.system.write_parquet(self._draft, piece.schema)
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
            ready = f"{whole}/{self.layout[0][0]}" if self.single else whole
            self.system.remove(self.target)
            if self.system.system is None:
                os.replace(ready, self.target)
            else:
                self.system.rename(ready, self.target)
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

    def _parts(self, first: int, count: int) -> list[PartRange]:
        stop = first + count
        return [PartRange(start, min(start + self.size, stop)) for start in range(first, stop, self.size)]

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


def work_folder(target: str) -> str:
    """Return where the parts of a target lie until it is whole."""
    return Files.beside(target, f".{PurePosixPath(target).name}.partial")


def _join(system: Files, parts: list[str], goal: str) -> None:
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for part in parts:
            with system.read_parquet(part) as opened:
                for record in opened.iter_batches(16384, use_threads=False):
                    if writer is None:
                        writer = stack.enter_context(system.write_parquet(goal, opened.schema_arrow))
                    writer.write_batch(record)
