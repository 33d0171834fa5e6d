"""Searching an old index in place: arrays, stores, FAISS, LanceDB and Qdrant give candidates and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from transship.errors import DataError, OptionError
from transship.verbs.translate.nearest import neighbours, unit_rows
from transship.verbs.translate.stores import Place, open_source, place

Array = np.ndarray[Any, Any]


class OldIndex(Protocol):
    """What lazy migration asks of an index: the nearest rows, and the vectors of rows."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return ids and scores of the nearest rows to each query, best first."""

    def vectors(self, ids: Sequence[Any]) -> Array:
        """Return the stored vectors of ids."""


class ArrayIndex:
    """Rows in memory (or a memory map), searched by cosine."""

    def __init__(self, ids: Sequence[Any], rows: Array, location: str = "") -> None:
        """Keep ids and rows."""
        self.location = location
        if len(ids) != len(rows):
            raise DataError(f"{len(ids)} ids for {len(rows)} rows", where="index", fix="give one id per row")
        self.ids, self.rows = list(ids), rows
        self.places = {identity: row for row, identity in enumerate(self.ids)}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows by cosine."""
        found = neighbours(queries, self.rows, count)
        scores = np.stack(
            [unit_rows(self.rows[row]) @ query for row, query in zip(found, unit_rows(queries), strict=True)]
        )
        return [[self.ids[row] for row in rows] for rows in found], scores

    def vectors(self, ids: Sequence[Any]) -> Array:
        """Return stored rows."""
        return np.asarray(self.rows[[self.places[identity] for identity in ids]])


class FaissIndex:
    """A FAISS index, searched by its own metric."""

    def __init__(self, index: Any, location: str = "") -> None:
        """Keep the index and its ids."""
        from transship.verbs.translate.stores.faiss_file import KeptRows, load_library

        faiss = load_library()
        self.index, self.location, self.kept = index, location, KeptRows(index)
        self.places = {int(identity): row for row, identity in enumerate(self.kept.ids)}
        self.closer = -1.0 if index.metric_type == faiss.METRIC_L2 else 1.0

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.index.ntotal)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows; a distance counts as its negative.

        An inverted file may find fewer rows than asked for: their scores come first.
        """
        scores, ids = self.index.search(np.ascontiguousarray(unit_rows(queries)), count)
        return [[int(one) for one in row if one >= 0] for row in ids], self.closer * scores

    def vectors(self, ids: Sequence[Any]) -> Array:
        """Return stored rows."""
        return self.kept.at(np.asarray([self.places[int(identity)] for identity in ids]))


class LanceIndex:
    """A LanceDB table, searched by cosine."""

    def __init__(self, where: Place) -> None:
        """Open the table."""
        source: Any = open_source(where.text, where.columns)
        self.table, self.column, self.key = source.table, source.vector_column, source.id_column
        if self.key is None:
            raise DataError("has no id column", where=where.text, fix="name it with Columns(id=...)")
        self.rows, self.location, self.name = source.rows, where.location, where.name

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.rows)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows."""
        return self.nearest(self.table, queries, count)

    def nearest(self, table: Any, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows of a table with the same columns."""
        ids, scores = [], []
        for query in queries:
            asked = table.search(query.astype(np.float32), vector_column_name=self.column)
            found = asked.distance_type("cosine").limit(count).select([self.key, "_distance"]).to_arrow()
            ids.append(found.column(self.key).to_pylist())
            scores.append(1.0 - found.column("_distance").to_numpy())
        return ids, np.stack(scores)

    def vectors(self, ids: Sequence[Any]) -> Array:
        """Return stored rows."""
        return self.stored(self.table, ids)

    def stored(self, table: Any, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids in a table with the same columns."""
        found = self.rows_of(ids, table)
        pairs = zip(found.column(self.key).to_pylist(), found.column(self.column).to_pylist(), strict=True)
        rows = dict(pairs)
        return np.asarray([rows[identity] for identity in ids], dtype=np.float32)

    def rows_of(self, ids: Sequence[Any], table: Any = None) -> Any:
        """Return whole rows by id, in the table's own order."""
        listed = ", ".join(
            f"'{str(one).replace(chr(39), chr(39) * 2)}'" if isinstance(one, str) else str(one) for one in ids
        )
        asked = (self.table if table is None else table).search().where(f"{self.key} IN ({listed})")
        return asked.limit(len(ids)).to_arrow()


class QdrantIndex:
    """A Qdrant collection, searched by its own distance."""

    def __init__(self, where: Place) -> None:
        """Open the collection."""
        source: Any = open_source(where.text, where.columns)
        self.client, self.name, self.vector, self.rows = (
            source.client,
            where.name,
            source.vector_name,
            source.rows,
        )
        self.params = source.params
        self.closer = -1.0 if str(source.params.distance).lower().endswith(("euclid", "manhattan")) else 1.0

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.rows)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows."""
        return self.nearest(self.name, queries, count)

    def nearest(self, name: str, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest points of a collection with the same vector name."""
        ids, scores = [], []
        for query in unit_rows(queries):
            asked = {"using": self.vector} if self.vector else {}
            found = self.client.query_points(name, query=query.tolist(), limit=count, **asked).points
            ids.append([point.id for point in found])
            scores.append([self.closer * point.score for point in found])
        return ids, np.asarray(scores)

    def vectors(self, ids: Sequence[Any]) -> Array:
        """Return stored rows."""
        return self.stored(self.name, ids)

    def stored(self, name: str, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids in a collection with the same vector name."""
        points = self.client.retrieve(name, list(ids), with_vectors=True)
        rows = {point.id: point.vector[self.vector] if self.vector else point.vector for point in points}
        return np.asarray([rows[identity] for identity in ids], dtype=np.float32)


def open_index(given: Any) -> OldIndex:
    """Return an index to search: a store's name, a FAISS index, a LanceDB table, an array or (ids, array)."""
    if isinstance(given, str | Path):
        where = place(given)
        if where.kind == "lance":
            return LanceIndex(where)
        if where.kind == "qdrant":
            return QdrantIndex(where)
        source: Any = open_source(given)
        if where.kind == "faiss":
            return FaissIndex(source.index, where.location)
        batches = list(source.batches(8192))
        ids = [identity for batch in batches for identity in batch.ids]
        return ArrayIndex(ids, np.concatenate([batch.vectors for batch in batches]), where.location)
    if isinstance(given, tuple) and len(given) == 2:
        return ArrayIndex(list(given[0]), np.asarray(given[1]))
    if isinstance(given, np.ndarray):
        return ArrayIndex(list(range(len(given))), given)
    if hasattr(given, "ntotal"):
        return FaissIndex(given)
    if type(given).__module__.startswith("lancedb") and hasattr(given, "schema"):
        return LanceIndex(place(f"{given._conn.uri}/{given.name}.lance"))
    if hasattr(given, "search") and hasattr(given, "vectors"):
        index: OldIndex = given
        return index
    raise OptionError(
        f"{type(given).__name__} is no index", where="LazyIndex", fix="give a store's name, FAISS or an array"
    )
