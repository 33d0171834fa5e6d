"""Judged queries: which documents answer them, and how well a ranking brings these to the top."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from transship.errors import DataError
from transship.types import Array
from transship.verbs.translate.maps.vectors import fuse, plain_id, unit_rows
from transship.verbs.translate.settings import Columns
from transship.verbs.translate.stores import VectorSource, open_source

# ids and old rows → the same rows in the new space
Translate = Callable[[Sequence[str], Array], Array]
# bytes of scores of all queries with some rows of a corpus
SCORE_BYTES = 16_000_000


@dataclass(frozen=True)
class Judgements:
    """Queries with judgements, and what they search.

    Attributes:
        new: the queries by the new model, [queries, width].
        grades: {query row: {document id: grade}}.
        old: the queries by the old model.
        corpus: the old index, with all documents; none where only the pairs are at hand.
    """

    new: Array
    grades: Mapping[int, Mapping[str, float]]
    old: Array | None = None
    corpus: VectorSource | None = None

    def ndcg(self, ids: Sequence[Any], new: Array | None, old: Array | None, k: int) -> float | None:
        """Return nDCG@k among these documents, by their new vectors, their old ones, or both fused."""
        sides = [(asked, rows) for asked, rows in ((self.new, new), (self.old, old)) if rows is not None]
        scores = [unit_rows(asked) @ unit_rows(rows).T for asked, rows in sides if asked is not None]
        if len(scores) < len(sides):
            return None
        places = {str(identity): row for row, identity in enumerate(ids)}
        return ndcg(fuse(scores[0], scores[1]) if len(scores) == 2 else scores[0], self._rows(places), k)

    def search(self, translate: Translate | None, k: int, *, by_old: bool = False) -> float | None:
        """Return nDCG@k among all documents of the corpus, by translated rows, by old ones, or both fused.

        The corpus is streamed: once for the mean and spread of each query's scores where two are fused, and
        once for the k best.
        """
        if by_old and self.old is None:
            return None
        places: dict[str, int] = {}
        spread: list[tuple[Array, Array]] = []
        if translate is not None and by_old:
            spread = _spread(parts for _, parts in self._scores(translate, by_old=True))
        best, rows = np.empty((len(self.new), 0)), np.empty((len(self.new), 0), np.int64)
        for ids, parts in self._scores(translate, by_old=by_old):
            numbers = np.arange(len(places), len(places) + len(ids))
            places |= dict(zip(ids, numbers.tolist(), strict=True))
            if spread:
                parts = [0.5 * (part - mean) / sd for part, (mean, sd) in zip(parts, spread, strict=True)]
            best = np.hstack([best, sum(parts)])
            rows = np.hstack([rows, np.broadcast_to(numbers, (len(best), len(ids)))])
            top = np.argsort(-best, axis=1, kind="stable")[:, :k]
            best, rows = np.take_along_axis(best, top, 1), np.take_along_axis(rows, top, 1)
        return mean_gain(rows, self._rows(places), k)

    def missing(self) -> int:
        judged = {name for grades in self.grades.values() for name in grades}
        for ids, _ in self._scores(None, by_old=False):
            judged.difference_update(ids)
        return len(judged)

    def _scores(
        self, translate: Translate | None, *, by_old: bool
    ) -> Iterator[tuple[list[str], list[Array]]]:
        """Yield ids of documents and, per space, their cosines with all queries, [queries, documents]."""
        assert self.corpus is not None
        size = min(4096, max(64, SCORE_BYTES // (8 * len(self.new))))
        for batch in self.corpus.batches(size):
            ids = [str(plain_id(identity)) for identity in batch.ids]
            parts = []
            if translate is not None:
                parts.append(unit_rows(self.new) @ unit_rows(translate(ids, batch.vectors)).T)
            if by_old and self.old is not None:
                parts.append(unit_rows(self.old) @ unit_rows(batch.vectors).T)
            yield ids, parts

    def _rows(self, places: Mapping[str, int]) -> dict[int, dict[int, float]]:
        """Return the grades by row of document, without documents that are not there."""
        by_row = {
            query: {places[name]: grade for name, grade in grades.items() if name in places}
            for query, grades in self.grades.items()
        }
        return {query: grades for query, grades in by_row.items() if grades}


def _spread(batches: Iterator[list[Array]]) -> list[tuple[Array, Array]]:
    """Return mean and standard deviation of each query's scores, per space, [queries, 1]."""
    count, sums, squares = 0, np.zeros(()), np.zeros(())
    for parts in batches:
        scores = np.stack(parts).astype(np.float64)
        count, sums = count + scores.shape[2], sums + scores.sum(2, keepdims=True)
        squares = squares + np.square(scores).sum(2, keepdims=True)
    mean = sums / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))
    return list(zip(mean, np.where(deviation > 0, deviation, 1.0), strict=True))


def read_judgements(
    table: str,
    queries: str,
    old_queries: str | None = None,
    columns: Columns | None = None,
    models: tuple[str, str] = ("", ""),
) -> Judgements:
    """Read judgements (query_id, doc_id, score) and the query vectors of one or both `models` (old, new)."""
    rows = pq.read_table(table).to_pydict()
    wanted = {"query_id", "doc_id", "score"}
    if not wanted <= set(rows):
        raise DataError(
            f"has no columns {', '.join(sorted(wanted))}", where=table, fix="give a table with these columns"
        )
    sides = zip((queries, old_queries), reversed(models), strict=True)
    vectors = [_vectors(name, columns, model) for name, model in sides if name]
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


def _vectors(reference: str, columns: Columns | None, model: str) -> Mapping[str, Array]:
    from transship.verbs.translate.embed import check_queries  # start-up: models

    source = open_source(reference, columns)
    try:
        check_queries(source, model)
        return {
            str(name): row
            for batch in source.batches(4096)
            for name, row in zip(batch.ids, batch.vectors, strict=True)
        }
    finally:
        source.close()


def ndcg(scores: Array, relevance: Mapping[int, Mapping[int, float]], k: int = 10) -> float:
    """Return the mean nDCG@k of queries (rows of `scores`) with relevance {query: {document: grade}}."""
    top = np.argpartition(-scores, min(k, scores.shape[1]) - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
    return mean_gain(np.take_along_axis(top, order, 1), relevance, k)


def mean_gain(ranked: Array, relevance: Mapping[int, Mapping[int, float]], k: int) -> float:
    """Return the mean nDCG@k of rankings, [queries, k or fewer] documents each, best first."""
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    values = []
    for query, grades in relevance.items():
        ideal = np.sort(np.asarray(list(grades.values()), dtype=float))[::-1][:k]
        best = float((ideal * discounts[: len(ideal)]).sum())
        if best <= 0:
            continue
        gains = np.asarray([grades.get(int(document), 0.0) for document in ranked[query]])
        values.append(float((gains * discounts[: len(gains)]).sum()) / best)
    if not values:
        raise DataError(
            "no query has a relevant document", where="nDCG", fix="give judgements of these queries"
        )
    return float(np.mean(values))
