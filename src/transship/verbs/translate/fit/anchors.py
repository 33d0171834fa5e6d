"""Choosing which rows to embed with the new model, and measuring whether the choice matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

from transship.atomic import atomic_file, check_target
from transship.errors import DataError, OptionError
from transship.numerics import MemoryBudget, derive_seed
from transship.types import Array
from transship.verbs.translate.fit.pairs import BATCH, VectorPairs, read_pairs
from transship.verbs.translate.fit.quality import measure as measure_rows
from transship.verbs.translate.fit.steps import POOL, choosing_bytes, reference_map
from transship.verbs.translate.maps.base import to_tensor, unit
from transship.verbs.translate.maps.vectors import Indices, plain_id
from transship.verbs.translate.settings import AnchorSettings, Columns, Way
from transship.verbs.translate.stores import VectorSource, open_source, place

WAYS: tuple[Way, ...] = get_args(Way)


def choose_anchors(
    old: str,
    target: str,
    *,
    columns: Columns | None = None,
    force: bool = False,
    memory: MemoryBudget | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Write the ids (and texts, where the store has them) of `count` rows of `old` to a Parquet file.

    The store is streamed: only the rows that a way looks at are kept, and written are those it chose. With
    `measure`, a store of the new model's vectors, the three ways are compared by the held-out recall of the
    reference map fitted on what each chose. What `memory` does not hold is refused before anything is read.
    `settings` are the fields of `AnchorSettings`.
    """
    asked = AnchorSettings(**settings)
    count, way, measure, seed = asked.count, asked.way, asked.measure, asked.seed
    check_target(target, force=force, kind="file", reads={"OLD": place(old).location})
    source = open_source(old, columns)
    new = None if measure is None else open_source(measure, columns)
    if memory is not None:
        instead = "leave --measure out" if measure is not None else ""
        memory.require(choosing_bytes(source, new, count, way), "choosing anchors", instead)
    some = candidate_rows(source.rows, min(count, source.rows), way=way, seed=seed)
    candidates = _read_rows(source, some, vectors=len(some) > count)
    if candidates.vectors is not None:
        candidates = candidates.at(choose_among(candidates.vectors, count, way=way, seed=seed))
    with atomic_file(target, force=force) as draft:
        pq.write_table(candidates.table(), draft)
    summary: dict[str, Any] = {"count": len(candidates.ids), "rows": source.rows, "way": way}
    if new is not None:
        summary["recall"] = compare_ways(read_pairs(source, new), count, seed=seed)
    return summary


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Rows of a store that may be chosen; `vectors` [rows, width] and `texts` where they are there."""

    ids: list[Any]
    texts: list[Any] | None
    vectors: Array | None

    def at(self, rows: Indices) -> _Candidates:
        texts = None if self.texts is None else [self.texts[row] for row in rows]
        return _Candidates([self.ids[row] for row in rows], texts, None)

    def table(self) -> pa.Table:
        columns = {"id": self.ids} | ({} if self.texts is None else {"text": self.texts})
        return pa.table(columns)


def _read_rows(source: VectorSource, wanted: Indices, *, vectors: bool) -> _Candidates:
    """Stream the store once and keep the rows that are wanted."""
    ids: list[Any] = []
    texts: list[Any] | None = []
    kept = np.empty((len(wanted), source.width), np.float32) if vectors else None
    begin = 0
    for batch in source.batches(BATCH):
        first, last = np.searchsorted(wanted, [begin, begin + len(batch.ids)])
        rows = wanted[first:last] - begin
        ids += [plain_id(batch.ids[row]) for row in rows]
        if batch.columns is None or "text" not in batch.columns.schema.names:
            texts = None
        elif texts is not None:
            texts += batch.columns.column("text").take(pa.array(rows)).to_pylist()
        if kept is not None:
            kept[first:last] = batch.vectors[rows]
        begin += len(batch.ids)
    return _Candidates(ids, texts, kept)


def compare_ways(pairs: VectorPairs, count: int, *, seed: int = 0) -> dict[str, float]:
    """Return the reference map's held-out recall@10, by way of choosing `count` of 70 % of the pairs."""
    pool, held = pairs.split(0.3, seed)
    if count >= len(pool):
        raise DataError(
            f"{count} anchors of {len(pool)} leave no choice",
            where="--measure",
            fix="give more pairs, or a lower --count",
        )
    recalls: dict[str, float] = {}
    for way in WAYS:
        rows = choose_rows(pool.old, count, way=way, seed=seed)
        fitted = reference_map().fit(pool.old[rows], pool.new[rows])
        recalls[way] = measure_rows(fitted.transform(held.old), held.new).recall
    return recalls


def choose_rows(vectors: Any, count: int, *, way: Way = "random", seed: int = 0, pool: int = POOL) -> Indices:
    """Return `count` sorted row numbers to embed with the new model, so that a map can be fitted on them.

    random draws evenly; farthest spreads them by the angle to the mean-centred rows; kmeans takes the row
    nearest to each of `count` centres. The last two look at a random `pool` of rows when there are more.
    """
    some = candidate_rows(len(vectors), count, way=way, seed=seed, pool=pool)
    return some if len(some) == count else some[choose_among(vectors[some], count, way=way, seed=seed)]


def candidate_rows(total: int, count: int, *, way: Way, seed: int = 0, pool: int = POOL) -> Indices:
    """Return the sorted row numbers that a way looks at: a random draw, for `random` the choice itself."""
    if way not in WAYS:
        raise OptionError(f"there is no way '{way}'", where="--way", fix="choose random, farthest or kmeans")
    if not 1 <= count <= total:
        raise DataError(f"{count} anchors of {total} rows", where="--count", fix=f"ask for 1 to {total}")
    looked_at = count if way == "random" else max(count, min(pool, total))
    rng = np.random.default_rng(derive_seed(seed, "anchors", way))
    return np.sort(rng.choice(total, looked_at, replace=False))


def choose_among(vectors: Any, count: int, *, way: Way, seed: int = 0) -> Indices:
    """Return which of the candidates' vectors [candidates, width] farthest or kmeans takes, sorted."""
    rows = to_tensor(np.asarray(vectors, dtype=np.float32))
    directions = unit(rows - rows.mean(0))
    if way == "farthest":
        start = int(np.random.default_rng(derive_seed(seed, "anchors start")).integers(len(rows)))
        return np.sort(_spread(directions, count, start=start))
    return np.sort(_central(directions.numpy(), count, seed=derive_seed(seed, "kmeans") % 2**32))


def _spread(directions: Tensor, count: int, start: int) -> Indices:
    """Farthest points without the full distance matrix: one row of it per pick."""
    nearest = torch.full((len(directions),), torch.inf)
    taken = [start]
    for _ in range(count - 1):
        torch.minimum(nearest, 1.0 - directions @ directions[taken[-1]], out=nearest)
        nearest[taken[-1]] = -torch.inf
        taken.append(int(nearest.argmax()))
    return np.asarray(taken, dtype=np.int64)


def _central(directions: Array, count: int, seed: int) -> Indices:
    """The row nearest to each centre; centres whose nearest row is taken give way to the next nearest."""
    kmeans = MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=4096, max_iter=30)
    centres = kmeans.fit(directions).cluster_centers_
    free = np.ones(len(directions), dtype=bool)
    taken = []
    for centre in centres:
        order = np.where(free, directions @ centre, -np.inf)
        taken.append(int(order.argmax()))
        free[taken[-1]] = False
    return np.asarray(taken, dtype=np.int64)
