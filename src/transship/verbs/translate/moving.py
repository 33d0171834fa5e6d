"""Apply: rows of a store through a map into another store, streamed, resumable, stamped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship.errors import DataError
from transship.numerics import MemoryBudget
from transship.verbs.translate.artifact import SavedMap
from transship.verbs.translate.quality import unit_rows
from transship.verbs.translate.rows import check_finite
from transship.verbs.translate.stores import Columns, Sink, Source, Stamp, is_finished, open_sink, open_source

Array = np.ndarray[Any, Any]
ROWS = 8192


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
    saved: SavedMap, reference: str, *, columns: Columns | None = None, memory: MemoryBudget | None = None
) -> Plan:
    """Return what `apply_map` will take; refuses what it would refuse."""
    source = open_source(reference, columns)
    try:
        check_fit(saved, source)
        size = _batch_rows(saved, memory)
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
            _map_bytes(saved) + size * _row_bytes(saved),
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
) -> Iterator[Moved]:
    """Translate every row of `reference` into `target`, yielding after each batch.

    The source is only read. Stopped at any moment and called again with the same arguments, it goes on
    where it stopped: no row is lost or doubled. Every store carries the model's name, the map's hash and the
    quality that was measured, per row where the store has fields for it.
    """
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
        sink = open_sink(target, source, stamp, width=saved.widths[1], force=force)
        size = _batch_rows(saved, memory)
        done = sink.done
        yield Moved(done, source.rows)
        if done < source.rows:
            for batch in source.batches(size, done):
                sink.write(batch, translate(saved, batch.vectors, reference, batch.ids))
                done += len(batch.vectors)
                yield Moved(done, source.rows)
        if done != source.rows:
            raise DataError(
                f"gave {done:,} of {source.rows:,} rows",
                where=reference,
                fix="run it again when nobody writes to it",
            )
        sink.finish()
    finally:
        if sink is not None:
            sink.close()
        source.close()


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


def _map_bytes(saved: SavedMap) -> int:
    return sum(value.nbytes for value in vars(saved.translator).values() if isinstance(value, np.ndarray))


def _batch_rows(saved: SavedMap, memory: MemoryBudget | None) -> int:
    budget = memory or MemoryBudget()
    return budget.rows(_row_bytes(saved), fixed=2 * _map_bytes(saved), most=ROWS, what="translating")
