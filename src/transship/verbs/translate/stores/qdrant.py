"""Qdrant: a collection of an embedded database or a server; rows are upserted by id, so none is doubled."""

from __future__ import annotations

import atexit
import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from transship.errors import DataError, MissingError, OutputError
from transship.numerics import chunks
from transship.types import Array
from transship.verbs.translate.maps.vectors import unit_rows
from transship.verbs.translate.stores.index import BesideRows, TableIndex
from transship.verbs.translate.stores.protocol import (
    MAP_COLUMN,
    MODEL_COLUMN,
    RowBatch,
    Stamp,
    Store,
    StorePlace,
    VectorSink,
    VectorSource,
    as_table,
    exists_already,
    goes_on,
    vanished,
)

# points of one upsert; a kill leaves at most this many undecided, and they are written again
UPSERT = 256
_CLIENTS: dict[str, Any] = {}


class QdrantSource(VectorSource):
    """Points of a collection in the order of their ids, as `scroll` gives them."""

    def __init__(self, place: StorePlace) -> None:
        """Open the collection and look at its vectors."""
        self.place, self.client = place, client(place)
        if not self.client.collection_exists(place.name):
            names = ", ".join(known.name for known in self.client.get_collections().collections)
            raise MissingError(
                f"has no collection '{place.name}'",
                where=place.location,
                fix=f"name one of: {names or 'none'}",
            )
        self.vector_column, self.params = _vector_params(self.client, place)
        self.rows = int(self.client.count(place.name, exact=True).count)
        self.width = int(self.params.size)
        self.stamp = _stamp(self.client, place.name)

    def fingerprint(self) -> str:
        """Return name and number of points (a collection has no version)."""
        return f"{self.place.location}#{self.place.name}-{self.rows}x{self.width}"

    def batches(self, size: int, start: int = 0) -> Iterator[RowBatch]:
        """Yield points from number `start` on; those before it are passed over without their vectors."""
        offset, passed = None, 0
        while passed < start:
            points, offset = self._scroll(min(1024, start - passed), offset, passed, vectors=False)
            passed += len(points)
            if offset is None:
                return
        while True:
            points, offset = self._scroll(size, offset, passed, vectors=True)
            if points:
                yield self._batch(points)
            passed += len(points)
            if offset is None:
                return

    def _scroll(self, count: int, offset: Any, passed: int, *, vectors: bool) -> tuple[list[Any], Any]:
        wanted: Any = [self.vector_column] if self.vector_column else True
        try:
            points: tuple[list[Any], Any] = self.client.scroll(
                self.place.name,
                limit=count,
                offset=offset,
                with_payload=vectors,
                with_vectors=vectors and wanted,
            )
        except Exception as error:  # the client raises whatever its transport does
            raise vanished(self.place.text, passed, error) from error
        return points

    def _batch(self, points: list[Any]) -> RowBatch:
        rows = [point.vector[self.vector_column] if self.vector_column else point.vector for point in points]
        if any(row is None for row in rows):
            raise DataError(
                "some points have no vector", where=self.place.text, fix="remove them, or embed them"
            )
        return RowBatch(
            [point.id for point in points],
            np.asarray(rows, dtype=np.float32),
            payloads=[dict(point.payload or {}) for point in points],
        )


class QdrantSink(VectorSink):
    """Upserts points with the same ids and payloads into another collection with the same distance."""

    def __init__(
        self, place: StorePlace, source: VectorSource, stamp: Stamp, width: int, force: bool
    ) -> None:
        """Make the collection, or continue one that an interrupted run left."""
        from qdrant_client import models  # an extra

        self.place, self.stamp, self.client, self.rows = place, stamp, client(place), source.rows
        same = source if isinstance(source, QdrantSource) else None
        self.vector_column = same.vector_column if same is not None else ""
        distance = same.params.distance if same is not None else models.Distance.COSINE
        marker = self._marker()
        self.done = 0
        if self.client.collection_exists(place.name):
            count = int(self.client.count(place.name, exact=True).count)
            known = _stamp(self.client, place.name)
            if count and not known.map and known != marker and not force:
                raise exists_already(place.text)
            if count and goes_on(known.to_json(), marker.to_json(), place.text, force=force):
                # all but the last upsert are certain; a whole collection leaves nothing to do
                self.done = count if count >= source.rows else max(0, count - UPSERT)
                return
            with _writing(place):
                self.client.delete_collection(place.name)
        with _writing(place):
            create(self.client, place.name, width, distance, self.vector_column)

    def write(self, batch: RowBatch, vectors: Array) -> None:
        """Upsert points and wait for them."""
        payloads = batch.payloads if batch.payloads is not None else _payloads(batch)
        for part in chunks(len(vectors), UPSERT):
            ids = [_point_id(identity) for identity in batch.ids[part]]
            upserted = points(ids, vectors[part], payloads[part], self.vector_column, self.stamp)
            with _writing(self.place):
                self.client.upsert(self.place.name, upserted, wait=True)
        self.done += len(vectors)

    def finish(self) -> None:
        """Refuse a source in which rows share an id: the later one took the place of the earlier."""
        count = int(self.client.count(self.place.name, exact=True).count)
        if count < self.rows:
            raise DataError(
                f"holds {count:,} points of {self.rows:,} rows, since some rows have the same id",
                where=self.place.text,
                fix="give every row an id of its own, or write to another kind of store",
            )

    def _marker(self) -> Stamp:
        return Stamp(self.stamp.model, self.stamp.map, {}, self.stamp.source)


@contextlib.contextmanager
def _writing(place: StorePlace) -> Iterator[None]:
    """Say in one sentence that a collection takes no more; the client raises whatever its storage does."""
    try:
        yield
    except Exception as error:
        raise OutputError(
            f"it takes no more rows ({type(error).__name__}: {error})",
            where=place.text,
            fix="check the disk or the server, and run it again",
        ) from error


class QdrantIndex(TableIndex):
    """A Qdrant collection, searched by its own distance."""

    def __init__(self, place: StorePlace) -> None:
        source = QdrantSource(place)
        self.client, self.name, self.rows = source.client, place.name, source.rows
        self.table = place.name
        self.vector, self.distance = source.vector_column, source.params.distance
        self.closer = -1.0 if str(self.distance).lower().endswith(("euclid", "manhattan")) else 1.0

    def nearest(self, table: str, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest points of a collection with the same vector name."""
        ids, scores = [], []
        for query in unit_rows(queries):
            asked = {"using": self.vector} if self.vector else {}
            hits = self.client.query_points(table, query=query.tolist(), limit=count, **asked).points
            ids.append([point.id for point in hits])
            scores.append([self.closer * point.score for point in hits])
        return ids, np.asarray(scores)

    def stored(self, table: str, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids in a collection with the same vector name."""
        points = self.client.retrieve(table, list(ids), with_vectors=True)
        rows = {point.id: point.vector[self.vector] if self.vector else point.vector for point in points}
        return np.asarray([rows[identity] for identity in ids], dtype=np.float32)

    def rows_beside(self, name: str, model: str) -> QdrantRows:
        return QdrantRows(self, name, model)


class QdrantRows(BesideRows):
    """Points of a second collection with the same ids and payloads; upserts come twice without harm."""

    def __init__(self, old: QdrantIndex, name: str, model: str = "") -> None:
        """Name the collection; it is made with the first row."""
        super().__init__(old, name, model)
        self.index, self.client = old, old.client
        if self.client.collection_exists(name):
            offset: Any = None
            while True:
                points, offset = self.client.scroll(name, limit=1024, offset=offset, with_payload=False)
                self.note(point.id for point in points)
                if offset is None:
                    break

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Upsert points with the payloads of the old ones."""
        index = self.index
        if not self.client.collection_exists(self.place):
            create(self.client, self.place, int(vectors.shape[1]), index.distance, index.vector)
        retrieved = self.client.retrieve(index.name, list(ids), with_payload=True)
        by_id = {point.id: dict(point.payload or {}) for point in retrieved}
        payloads = [by_id.get(identity, {}) for identity in ids]
        upserted = points(ids, vectors, payloads, index.vector, self.stamp)
        self.client.upsert(self.place, upserted, wait=True)
        self.note(ids)


def create(opened: Any, name: str, width: int, distance: Any, vector_name: str) -> None:
    """Make a collection of one vector per point, with a name or without."""
    from qdrant_client import models  # an extra

    vectors: Any = models.VectorParams(size=width, distance=distance)
    opened.create_collection(name, vectors_config={vector_name: vectors} if vector_name else vectors)


def points(ids: Any, vectors: Array, payloads: list[dict[str, Any]], vector_name: str, stamp: Stamp) -> Any:
    """Return points with whose space their vectors are in."""
    from qdrant_client import models  # an extra

    own = {MODEL_COLUMN: stamp.model, MAP_COLUMN: stamp.map, "vector_source": stamp.source}
    rows = [vector.tolist() for vector in vectors]
    return [
        models.PointStruct(
            id=identity, vector={vector_name: row} if vector_name else row, payload={**payload, **own}
        )
        for identity, row, payload in zip(ids, rows, payloads, strict=True)
    ]


def client(place: StorePlace) -> Any:
    """Return the one client of a location: an embedded database allows no second one."""
    try:
        from qdrant_client import QdrantClient  # an extra
    except ImportError as error:
        raise MissingError(
            "the Qdrant client is not installed", where="qdrant", fix="pip install 'transship[qdrant]'"
        ) from error
    if not place.name:
        raise DataError("names no collection", where=place.text, fix="write qdrant:LOCATION#COLLECTION")
    server = place.location.startswith(("http://", "https://"))
    key = place.location if server else str(Path(place.location).resolve())
    if key not in _CLIENTS:
        try:
            opened = QdrantClient(url=place.location) if server else QdrantClient(path=place.location)
            if server:
                opened.get_collections()
        except Exception as error:  # the client raises whatever its transport does
            raise MissingError(
                f"cannot be opened ({type(error).__name__}: {error})",
                where=place.text,
                fix="check that the server runs, or that no other process has the folder open",
            ) from error
        _CLIENTS[key] = opened
    return _CLIENTS[key]


@atexit.register
def close_clients() -> None:
    """Close all clients, so that the folders of embedded databases are free again."""
    while _CLIENTS:
        _CLIENTS.popitem()[1].close()


def _vector_params(opened: Any, place: StorePlace) -> tuple[str, Any]:
    vectors = opened.get_collection(place.name).config.params.vectors
    if not isinstance(vectors, dict):
        return "", vectors
    wanted = place.columns.vector
    if wanted is None and len(vectors) == 1:
        wanted = next(iter(vectors))
    if wanted not in vectors:
        raise DataError(
            "has several named vectors" if wanted is None else f"has no vector '{wanted}'",
            where=place.text,
            fix=f"name one with --vector-column: {', '.join(vectors)}",
        )
    return str(wanted), vectors[wanted]


def _stamp(opened: Any, name: str) -> Stamp:
    """Read the provenance off the first point: the payload is where Qdrant keeps it per row."""
    points, _ = opened.scroll(name, limit=1, with_payload=True)
    payload = dict(points[0].payload or {}) if points else {}
    return Stamp(
        payload.get(MODEL_COLUMN, ""), payload.get(MAP_COLUMN, ""), {}, payload.get("vector_source", "")
    )


def _payloads(batch: RowBatch) -> list[dict[str, Any]]:
    if batch.columns is None:
        return [{} for _ in batch.ids]
    table = as_table(batch)
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    rows: list[dict[str, Any]] = table.drop_columns(nested).to_pylist()
    return rows


def _point_id(given: Any) -> Any:
    """Return an id that Qdrant takes: an unsigned number or a UUID."""
    if isinstance(given, int | np.integer) and given >= 0:
        return int(given)
    try:
        return str(uuid.UUID(str(given)))
    except ValueError:
        # a stable UUID of the id's own text; the id itself stays in the payload
        return str(uuid.uuid5(uuid.NAMESPACE_URL, str(given)))


STORE = Store(QdrantSource, QdrantSink, QdrantIndex)
