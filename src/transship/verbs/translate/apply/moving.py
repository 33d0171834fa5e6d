"""Apply: rows of a store through a map into another store, streamed, resumable, stamped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship.errors import DataError, OptionError
from transship.numerics import MemoryBudget
from transship.verbs.translate.artifact import SavedMap
from transship.verbs.translate.engines import Engine, LocalEngine
from transship.verbs.translate.nearest import unit_rows
from transship.verbs.translate.stores import (
    Columns,
    Sink,
    Source,
    Stamp,
    is_finished,
    open_sink,
    open_source,
    place,
)
from transship.verbs.translate.stores.parquet import ParquetSource
from transship.verbs.translate.stores.parquet_sink import ParquetSink, Part, PartWriter
from transship.verbs.translate.vectors import check_finite, check_zero

Array = np.ndarray[Any, Any]
# rows on their way at a time: twice as many took 100 MB more and were hardly faster
ROWS = 4096
# of one id as Python holds it in a list
ID_BYTES = 100


@dataclass(frozen=True)
class Plan:
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
    """

    rows: int
    widths: tuple[int, int]
    bytes_in: int
    bytes_out: int
    seconds: float
    memory: int
    done: int
    unit: bool


@dataclass(frozen=True)
class Moved:
    """One step of a run: rows done so far, and of how many."""

    done: int
    rows: int


def plan_apply(
    saved: SavedMap,
    reference: str,
    target: str | None = None,
    *,
    columns: Columns | None = None,
    memory: MemoryBudget | None = None,
) -> Plan:
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
        return Plan(
            source.rows,
            (narrow, wide),
            source.rows * narrow * 4,
            source.rows * wide * 4,
            seconds,
            map_bytes(saved) + size * _row_bytes(saved) + held,
            0,
            _unit(saved),
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
) -> Iterator[Moved]:
    """Translate every row of `reference` into `target`, yielding after each batch.

    The source is only read. Stopped at any moment and called again with the same arguments, it goes on
    where it stopped: no row is lost or doubled. Every store carries the model's name, the map's hash and the
    quality that was measured, per row where the store has fields for it. Parquet goes part by part through
    any `engine`, with the same result; `memory` is that of each process.
    """
    engine = engine or LocalEngine()
    source = open_source(reference, columns)
    sink: Sink | None = None
    try:
        check_fit(saved, source)
        stamp = Stamp(
            str(saved.about.get("target", "")),
            saved.hash,
            saved.about.get("quality", {}),
            source.fingerprint(),
        )
        if not force and is_finished(target, source, stamp):
            yield Moved(source.rows, source.rows)
            return
        size = _batch_rows(saved, memory, _held(saved, source, target))
        sink = open_sink(target, source, stamp, width=saved.widths[1], force=force)
        if isinstance(source, ParquetSource) and isinstance(sink, ParquetSink):
            steps = _by_parts(PartWork(saved, source, sink.writer, size), sink.missing(), engine)
        elif engine.parallel:
            raise OptionError(
                "only Parquet is written by several processes",
                where=f"{reference} → {target}",
                fix="leave --jobs and --engine out, or translate from Parquet into Parquet",
            )
        else:
            steps = _in_order(saved, source, sink, size)
        yield from (Moved(done, source.rows) for done in steps)
        sink.finish()
    finally:
        if sink is not None:
            sink.close()
        source.close()


def _in_order(saved: SavedMap, source: Source, sink: Sink, size: int) -> Iterator[int]:
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
    source: ParquetSource
    writer: PartWriter
    size: int

    def steps(self, part: Part) -> Iterator[int]:
        """Translate one part and write it, yielding its rows so far.

        Batches begin with the part, so that its bits do not depend on who does it or what was done before.
        """
        where = self.source.place.text
        pieces = (
            (batch, translate(self.saved, batch.vectors, where, batch.ids))
            for batch in self.source.batches(self.size, part.start, part.stop)
        )
        yield from self.writer.write(part, pieces)


def translate_part(work: PartWork, part: Part) -> int:
    """Translate one part in whatever process this is, and return its rows."""
    return max(work.steps(part), default=0)


def _by_parts(work: PartWork, missing: list[Part], engine: Engine) -> Iterator[int]:
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


def check_fit(saved: SavedMap, source: Source) -> None:
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
    check_finite(rows, where, ids)
    check_zero(rows, where, ids)
    moved: Array = saved.translator.transform(
        rows if rows.dtype == np.float64 else rows.astype(np.float32, copy=False)
    )
    return unit_rows(moved) if _unit(saved) else moved.astype(np.float32, copy=False)


def _unit(saved: SavedMap) -> bool:
    return bool(saved.about.get("unit_target", False))


def _row_bytes(saved: SavedMap) -> int:
    """Bytes of one row on its way: read, translated, scaled; for a kernel its distances to anchors."""
    support = getattr(saved.translator, "support_", None)
    return 4 * (2 * saved.widths[0] + 3 * saved.widths[1] + (2 * len(support) if support is not None else 0))


def map_bytes(saved: SavedMap) -> int:
    """Return the bytes of a map's arrays."""
    return sum(value.nbytes for value in vars(saved.translator).values() if isinstance(value, np.ndarray))


def _batch_rows(saved: SavedMap, memory: MemoryBudget | None, held: int) -> int:
    budget = memory or MemoryBudget()
    fixed = 2 * map_bytes(saved) + held
    return budget.rows(_row_bytes(saved), fixed=fixed, most=ROWS, what="translating")


def _held(saved: SavedMap, source: Source, target: str) -> int:
    """Return the bytes that a target keeps in memory until its end: an index all vectors, twice as it grows;
    an array file the ids.
    """
    kind = place(target).kind
    vectors = 2 * 4 * saved.widths[1] if kind == "faiss" else 0
    return source.rows * (vectors + (ID_BYTES if kind in ("faiss", "npy") else 0))
