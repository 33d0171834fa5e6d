"""Apply: rows of a store through a map into another store, streamed, resumable, stamped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship.errors import DataError, OptionError
from transship.numerics import MemoryBudget, format_bytes
from transship.types import Array
from transship.verbs.translate.engines import Engine, LocalEngine
from transship.verbs.translate.maps.saved import SavedMap
from transship.verbs.translate.maps.vectors import check_finite_rows, check_rows, unit_rows
from transship.verbs.translate.settings import Columns
from transship.verbs.translate.stores import (
    RowsDone,
    Stamp,
    VectorSink,
    VectorSource,
    is_finished,
    open_sink,
    open_source,
    place,
    store,
    written_alone,
)
from transship.verbs.translate.stores.protocol import PartRange, PartSink, PartWriter, SplitSource

# rows on their way at a time: twice as many took 100 MB more and were hardly faster
ROWS = 4096


@dataclass(frozen=True)
class ApplyPlan:
    """What applying a map will take.

    Attributes:
        rows: rows to translate.
        widths: before and after.
        bytes_in: of the vectors read.
        bytes_out: of the vectors written.
        seconds: CPU seconds of the products, from a timed sample.
        memory: bytes of the map and of one batch on its way.
        done: rows that an interrupted run has written already.
        unit: whether rows are brought to unit length.
        note: what else to know of the rows, such as that they are approximate.
    """

    rows: int
    widths: tuple[int, int]
    bytes_in: int
    bytes_out: int
    seconds: float
    memory: int
    done: int
    unit: bool
    note: str = ""

    def __str__(self) -> str:
        narrow, wide = self.widths
        return (
            f"{self.rows:,} rows, {narrow} → {wide} wide, {format_bytes(self.bytes_in)} read, "
            f"{format_bytes(self.bytes_out)} written, about {self.seconds:.0f} CPU seconds, "
            f"{format_bytes(self.memory)} of memory{', unit length' if self.unit else ''}"
            f"{f'; {self.note}' if self.note else ''}"
        )


def plan_apply(
    saved: SavedMap,
    reference: str,
    target: str | None = None,
    *,
    columns: Columns | None = None,
    memory: MemoryBudget | None = None,
) -> ApplyPlan:
    """Return what `apply_map` will take; refuses what it would refuse."""
    source = open_source(reference, columns)
    try:
        check_fit(saved, source)
        held = 0 if target is None else _held(saved, source, target)
        size = _batch_rows(saved, memory, held)
        sample = next(iter(source.batches(min(size, 2048)))).vectors
        start = time.process_time()
        translate(saved, sample, reference)
        seconds = (time.process_time() - start) / len(sample) * source.rows
        narrow, wide = saved.widths
        return ApplyPlan(
            source.rows,
            (narrow, wide),
            source.rows * narrow * 4,
            source.rows * wide * 4,
            seconds,
            saved.translator.array_bytes + size * saved.translator.row_bytes + held,
            0,
            saved.unit_target,
            source.note,
        )
    finally:
        source.close()


def apply_map(
    saved: SavedMap,
    reference: str,
    target: str,
    *,
    columns: Columns | None = None,
    memory: MemoryBudget | None = None,
    force: bool = False,
    engine: Engine | None = None,
) -> Iterator[RowsDone]:
    """Translate every row of `reference` into `target`, yielding after each batch.

    The source is only read. Stopped at any moment and called again with the same arguments, it goes on
    where it stopped: no row is lost or doubled. Every store carries the model's name, the map's hash and the
    quality that was measured, per row where the store has fields for it. Parquet goes part by part through
    any `engine`, with the same result; `memory` is that of each process. A map for queries leaves rows as
    they are: it makes a FAISS index that takes the new model's queries.
    """
    if saved.direction == "query":
        with written_alone(target):
            yield from apply_to_queries(saved, reference, target, force=force)
        return
    with written_alone(target):
        yield from _apply_rows(saved, reference, target, columns, memory, force, engine or LocalEngine())


def _apply_rows(
    saved: SavedMap,
    reference: str,
    target: str,
    columns: Columns | None,
    memory: MemoryBudget | None,
    force: bool,
    engine: Engine,
) -> Iterator[RowsDone]:
    source = open_source(reference, columns)
    sink: VectorSink | None = None
    try:
        check_fit(saved, source)
        stamp = Stamp(
            str(saved.about.get("target", "")),
            saved.hash,
            saved.about.get("quality", {}),
            source.fingerprint(),
        )
        if not force and is_finished(target, source, stamp):
            yield RowsDone(source.rows, source.rows)
            return
        size = _batch_rows(saved, memory, _held(saved, source, target))
        sink = open_sink(target, source, stamp, width=saved.widths[1], force=force)
        if isinstance(source, SplitSource) and isinstance(sink, PartSink):
            steps = _by_parts(PartWork(saved, source, sink.writer, size), sink.missing(), engine)
        elif engine.parallel:
            raise OptionError(
                "only Parquet is written by several processes",
                where=f"{reference} → {target}",
                fix="leave --jobs and --engine out, or translate from Parquet into Parquet",
            )
        else:
            steps = _in_order(saved, source, sink, size)
        yield from (RowsDone(done, source.rows) for done in steps)
        sink.finish()
    finally:
        if sink is not None:
            sink.close()
        source.close()


def apply_to_queries(saved: SavedMap, reference: str, target: str, *, force: bool) -> Iterator[RowsDone]:
    """Put a linear map before a FAISS index, so that it takes queries of the new model."""
    index, goal = place(reference), place(target)
    write = store(index).write_queries
    if write is None or goal.kind != index.kind:
        raise DataError(
            "a query map leaves the rows as they are",
            where=saved.path,
            fix="use it in LazyIndex, or on a FAISS index",
        )
    affine = saved.translator.as_affine()
    if affine is None:
        raise DataError(
            f"a {saved.translator.map_name} map is not linear",
            where=saved.path,
            fix="fit with --method ridge",
        )
    matrix, bias = affine
    # where queries do better without the mean of the old rows, it is left out
    mean = 0.0 if saved.about.get("keep_mean", True) else saved.translator.target_mean_
    rows = write(index, goal, matrix, bias - mean, force)
    yield RowsDone(rows, rows)


def _in_order(saved: SavedMap, source: VectorSource, sink: VectorSink, size: int) -> Iterator[int]:
    """Translate batch after batch, yielding the rows done."""
    done = sink.done
    yield done
    where = source.place.text
    if done < source.rows:
        for batch in source.batches(size, done):
            sink.write(batch, translate(saved, batch.vectors, where, batch.ids))
            done += len(batch.vectors)
            yield done
    if done != source.rows:
        raise DataError(
            f"gave {done:,} of {source.rows:,} rows", where=where, fix="run it again when nobody writes to it"
        )


@dataclass(frozen=True)
class PartWork:
    """What a process needs to translate any part of a source; it travels to workers."""

    saved: SavedMap
    source: SplitSource
    writer: PartWriter
    size: int

    def steps(self, part: PartRange) -> Iterator[int]:
        """Translate one part and write it, yielding its rows so far.

        Batches begin with the part, so that its bits do not depend on who does it or what was done before.
        """
        where = self.source.place.text
        pieces = (
            (batch, translate(self.saved, batch.vectors, where, batch.ids))
            for batch in self.source.batches(self.size, part.start, part.stop)
        )
        yield from self.writer.write(part, pieces)


def translate_part(work: PartWork, part: PartRange) -> int:
    """Translate one part in whatever process this is, and return its rows."""
    return max(work.steps(part), default=0)


def _by_parts(work: PartWork, missing: list[PartRange], engine: Engine) -> Iterator[int]:
    """Translate the parts that are missing, yielding the rows done in all."""
    done = work.source.rows - sum(part.stop - part.start for part in missing)
    yield done
    if engine.parallel:
        for _, rows in engine.run(translate_part, work, missing):
            done += rows
            yield done
        return
    for part in missing:
        for rows in work.steps(part):
            yield done + rows
        done += part.stop - part.start


def check_fit(saved: SavedMap, source: VectorSource) -> None:
    """Refuse a store of another width or of another model than the map was fitted on."""
    narrow, wide = saved.widths
    wanted = str(saved.about.get("source", ""))
    if source.stamp.map:
        raise DataError(
            f"its vectors were translated already (map {source.stamp.map[:8]})",
            where=source.place.text,
            fix="apply the map to the original rows",
        )
    if source.width != narrow:
        other = " (that is the map's target: was it translated already?)" if source.width == wide else ""
        raise DataError(
            f"vectors are {source.width} wide and the map takes {narrow}{other}",
            where=source.place.text,
            fix="use the map of this model",
        )
    if wanted and source.stamp.model and source.stamp.model != wanted:
        raise DataError(
            f"vectors are of '{source.stamp.model}' and the map was fitted on '{wanted}'",
            where=source.place.text,
            fix="use the map of this model",
        )


def translate(saved: SavedMap, vectors: Array, where: str, ids: Any = None) -> Array:
    """Return translated rows as the target expects them: of unit length where the new model's rows are."""
    rows = np.asarray(vectors)
    check_rows(rows, where, ids)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is looked for below
        moved: Array = saved.translator.transform(
            rows if rows.dtype == np.float64 else rows.astype(np.float32, copy=False)
        ).astype(np.float32, copy=False)
    check_finite_rows(moved, where, ids, "become NaN or infinity under the map")
    return unit_rows(moved) if saved.unit_target else moved


def _batch_rows(saved: SavedMap, memory: MemoryBudget | None, held: int) -> int:
    budget = memory or MemoryBudget()
    fixed = 2 * saved.translator.array_bytes + held
    return budget.rows(saved.translator.row_bytes, fixed=fixed, most=ROWS, what="translating")


def _held(saved: SavedMap, source: VectorSource, target: str) -> int:
    """Return the bytes that a target keeps in memory until its end."""
    return store(place(target)).held_bytes(source.rows, saved.widths[1])
