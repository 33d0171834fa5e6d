"""Choosing which rows to embed with the new model, and measuring whether the choice matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transship.checkpoints.atomic import atomic_file
from transship.errors import DataError, OutputError
from transship.verbs.translate.anchors import Way, choose_rows
from transship.verbs.translate.pairs import Pairs, read_pairs
from transship.verbs.translate.quality import measure as measure_rows
from transship.verbs.translate.stores import Columns, open_source

WAYS: tuple[Way, ...] = ("random", "farthest", "kmeans")


def choose_anchors(
    old: str,
    target: str,
    *,
    count: int,
    way: Way = "random",
    measure: str | None = None,
    columns: Columns | None = None,
    seed: int = 0,
    force: bool = False,
) -> dict[str, Any]:
    """Write the ids (and texts, where the store has them) of `count` rows of `old` to a Parquet file.

    With `measure`, a store of the new model's vectors, the three ways are compared by the held-out recall of
    ridge fitted on what each chose.
    """
    if Path(target).exists() and not force:
        raise OutputError("exists already", where=target, fix="choose another name, or pass --force")
    source = open_source(old, columns)
    vectors = np.concatenate([np.asarray(batch.vectors, dtype=np.float32) for batch in source.batches(8192)])
    chosen = choose_rows(vectors, min(count, len(vectors)), way=way, seed=seed)
    ids: list[Any] = []
    texts: list[Any] = []
    for batch in source.batches(8192):
        ids += list(batch.ids)
        if batch.columns is not None and "text" in batch.columns.schema.names:
            texts += batch.columns.column("text").to_pylist()
    table: dict[str, Any] = {"id": [_plain(ids[row]) for row in chosen]}
    if len(texts) == len(ids):
        table["text"] = [texts[row] for row in chosen]
    with atomic_file(target, force=force) as draft:
        pq.write_table(pa.table(table), draft)
    found: dict[str, Any] = {"count": len(chosen), "rows": len(vectors), "way": way}
    if measure is not None:
        new = open_source(measure, columns)
        found["recall"] = compare_ways(read_pairs(source, new), count, seed=seed)
    return found


def compare_ways(pairs: Pairs, count: int, *, seed: int = 0) -> dict[str, float]:
    """Return the held-out recall@10 of ridge by way of choosing `count` anchors among 70 % of the pairs."""
    from transship.verbs.translate.methods.ridge import Ridge

    pool, held = pairs.split(0.3, seed)
    if count >= len(pool):
        raise DataError(
            f"{count} anchors of {len(pool)} leave no choice",
            where="--measure",
            fix="give more pairs, or a lower --count",
        )
    found: dict[str, float] = {}
    for way in WAYS:
        rows = choose_rows(pool.old, count, way=way, seed=seed)
        fitted = Ridge().fit(pool.old[rows], pool.new[rows])
        found[way] = measure_rows(fitted.transform(held.old), held.new).recall
    return found


def _plain(identity: Any) -> Any:
    return identity.item() if isinstance(identity, np.generic) else identity
