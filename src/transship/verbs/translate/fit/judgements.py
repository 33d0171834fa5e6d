"""Judged queries: which documents answer them, and how well a ranking brings these to the top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from transship.errors import DataError
from transship.types import Array
from transship.verbs.translate.nearest import unit_rows
from transship.verbs.translate.stores import Columns, open_source


@dataclass(frozen=True)
class Judgements:
    """Queries with judgements: vectors of both models, and {query row: {document id: grade}}."""

    new: Array
    grades: Mapping[int, Mapping[str, float]]
    old: Array | None = None

    def ndcg(self, ids: Sequence[Any], new: Array | None, old: Array | None, k: int) -> float | None:
        """Return nDCG@k of documents by their vectors of the new space, the old one, or both fused."""
        sides = [(asked, rows) for asked, rows in ((self.new, new), (self.old, old)) if rows is not None]
        scores = [unit_rows(asked) @ unit_rows(rows).T for asked, rows in sides if asked is not None]
        if len(scores) < len(sides):
            return None
        return ndcg(fuse(scores[0], scores[1]) if len(scores) == 2 else scores[0], self._rows(ids), k)

    def _rows(self, ids: Sequence[Any]) -> dict[int, dict[int, float]]:
        places = {str(identity): row for row, identity in enumerate(ids)}
        by_row = {
            query: {places[name]: grade for name, grade in grades.items() if name in places}
            for query, grades in self.grades.items()
        }
        return {query: grades for query, grades in by_row.items() if grades}


def read_judgements(
    table: str, queries: str, old_queries: str | None = None, columns: Columns | None = None
) -> Judgements:
    """Read judgements (query_id, doc_id, score) and the query vectors of one or both models."""
    rows = pq.read_table(table).to_pydict()
    wanted = {"query_id", "doc_id", "score"}
    if not wanted <= set(rows):
        raise DataError(
            f"has no columns {', '.join(sorted(wanted))}", where=table, fix="give a table with these columns"
        )
    vectors = [_vectors(name, columns) for name in (queries, old_queries) if name]
    ids = list(vectors[0])
    if len(vectors) == 2:
        ids = [name for name in ids if name in vectors[1]]
    if not ids:
        raise DataError(
            "no query is on both sides", where=queries, fix="embed the same queries with both models"
        )
    numbers = {name: row for row, name in enumerate(ids)}
    grades: dict[int, dict[str, float]] = {}
    for query, document, score in zip(rows["query_id"], rows["doc_id"], rows["score"], strict=True):
        if str(query) in numbers:
            grades.setdefault(numbers[str(query)], {})[str(document)] = float(score)
    stacked = [np.stack([side[name] for name in ids]) for side in vectors]
    return Judgements(stacked[0], grades, stacked[1] if len(stacked) == 2 else None)


def _vectors(reference: str, columns: Columns | None) -> Mapping[str, Array]:
    source = open_source(reference, columns)
    try:
        return {
            str(name): row
            for batch in source.batches(4096)
            for name, row in zip(batch.ids, batch.vectors, strict=True)
        }
    finally:
        source.close()


def fuse(first: Array, second: Array, weight: float = 0.5) -> Array:
    """Return z(first)·(1 − w) + z(second)·w, row by row: two rankings of the same gallery as one."""
    fused: Array = (1.0 - weight) * _standard(first) + weight * _standard(second)
    return fused


def _standard(scores: Array) -> Array:
    spread = scores.std(axis=-1, keepdims=True)
    standard: Array = (scores - scores.mean(axis=-1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    return standard


def ndcg(scores: Array, relevance: Mapping[int, Mapping[int, float]], k: int = 10) -> float:
    """Return the mean nDCG@k of queries (rows of `scores`) with relevance {query: {document: grade}}."""
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    values = []
    for query, grades in relevance.items():
        ideal = np.sort(np.asarray(list(grades.values()), dtype=float))[::-1][:k]
        best = float((ideal * discounts[: len(ideal)]).sum())
        if best <= 0:
            continue
        row = scores[query]
        top = np.argpartition(-row, min(k, len(row)) - 1)[:k]
        top = top[np.argsort(-row[top], kind="stable")]
        gains = np.asarray([grades.get(int(document), 0.0) for document in top])
        values.append(float((gains * discounts[: len(gains)]).sum()) / best)
    if not values:
        raise DataError(
            "no query has a relevant document", where="nDCG", fix="give judgements of these queries"
        )
    return float(np.mean(values))
