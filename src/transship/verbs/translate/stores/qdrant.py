"""Qdrant: a collection of an embedded database or a server; rows are upserted by id, so none is doubled."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transship.errors import DataError, MissingError, OutputError
from transship.verbs.translate.stores.protocol import (
    MAP_COLUMN,
    MODEL_COLUMN,
    Array,
    Batch,
    Place,
    Source,
    Stamp,
    gone,
    refuse_half_done,
)

# points of one upsert; a kill leaves at most this many undecided, and they are written again
UPSERT = 256
_CLIENTS: dict[str, Any] = {}


class QdrantSource:
    """Points of a collection in the order of their ids, as `scroll` gives them."""

    def __init__(self, place: Place) -> None:
        """Open the collection and look at its vectors."""
        self.place, self.client = place, client(place)
        if not self.client.collection_exists(place.name):
            names = ", ".join(found.name for found in self.client.get_collections().collections)
            raise MissingError(
                f"has no collection '{place.name}'",
                where=place.location,
                fix=f"name one of: {names or 'none'}",
            )
        self.vector_name, self.params = _vector_params(self.client, place)
        self.rows = int(self.client.count(place.name, exact=True).count)
        self.width = int(self.params.size)
        self.stamp = _stamp(self.client, place.name)

    def fingerprint(self) -> str:
        """Return name and number of points (a collection has no version)."""
        return f"{self.place.location}#{self.place.name}-{self.rows}x{self.width}"

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield points from number `start` on; those before it are passed over without their vectors."""
        offset, seen = None, 0
        while seen < start:
            points, offset = self._scroll(min(1024, start - seen), offset, seen, vectors=False)
            seen += len(points)
            if offset is None:
                return
        while True:
            points, offset = self._scroll(size, offset, seen, vectors=True)
            if points:
                yield self._batch(points)
            seen += len(points)
            if offset is None:
                return

    def close(self) -> None:
        """Clients are shared and closed at the end of the process."""

    def _scroll(self, count: int, offset: Any, seen: int, *, vectors: bool) -> tuple[list[Any], Any]:
        wanted: Any = [self.vector_name] if self.vector_name else True
        try:
            found: tuple[list[Any], Any] = self.client.scroll(
                self.place.name,
                limit=count,
                offset=offset,
                with_payload=vectors,
                with_vectors=vectors and wanted,
            )
        except Exception as error:  # the client raises whatever its transport does
            raise gone(self.place.text, seen, error) from error
        return found

    def _batch(self, points: list[Any]) -> Batch:
        rows = [point.vector[self.vector_name] if self.vector_name else point.vector for point in points]
        if any(row is None for row in rows):
            raise DataError(
                "some points have no vector", where=self.place.text, fix="remove them, or embed them"
            )
        return Batch(
            [point.id for point in points],
            np.asarray(rows, dtype=np.float32),
            payloads=[dict(point.payload or {}) for point in points],
        )


class QdrantSink:
    """Upserts points with the same ids and payloads into another collection with the same distance."""

    def __init__(self, place: Place, source: Source, stamp: Stamp, width: int, force: bool) -> None:
        """Make the collection, or continue one that an interrupted run left."""
        from qdrant_client import models

        self.place, self.stamp, self.client, self.rows = place, stamp, client(place), source.rows
        params = getattr(source, "params", None)
        self.vector_name = getattr(source, "vector_name", "") or ""
        distance = params.distance if params is not None else models.Distance.COSINE
        marker = self._marker()
        self.done = 0
        if self.client.collection_exists(place.name):
            count = int(self.client.count(place.name, exact=True).count)
            known = _stamp(self.client, place.name)
            if count and known.to_json() == marker.to_json():
                # all but the last upsert are certain; a whole collection leaves nothing to do
                self.done = count if count >= source.rows else max(0, count - UPSERT)
                return
            if count and not force:
                raise (
                    refuse_half_done(place.text)
                    if known.map
                    else OutputError(
                        "exists already", where=place.text, fix="choose another name, or pass --force"
                    )
                )
            self.client.delete_collection(place.name)
        create(self.client, place.name, width, distance, self.vector_name)

    def write(self, batch: Batch, vectors: Array) -> None:
        """Upsert points and wait for them."""
        payloads = batch.payloads if batch.payloads is not None else _payloads(batch)
        for part in _slices(len(vectors)):
            ids = [_point_id(identity) for identity in batch.ids[part]]
            made = points(ids, vectors[part], payloads[part], self.vector_name, self.stamp)
            self.client.upsert(self.place.name, made, wait=True)
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

    def close(self) -> None:
        """Clients are shared and closed at the end of the process."""

    def _marker(self) -> Stamp:
        return Stamp(self.stamp.model, self.stamp.map, {}, self.stamp.source)


def create(opened: Any, name: str, width: int, distance: Any, vector_name: str) -> None:
    """Make a collection of one vector per point, with a name or without."""
    from qdrant_client import models

    vectors: Any = models.VectorParams(size=width, distance=distance)
    opened.create_collection(name, vectors_config={vector_name: vectors} if vector_name else vectors)


def points(ids: Any, vectors: Array, payloads: list[dict[str, Any]], vector_name: str, stamp: Stamp) -> Any:
    """Return points with whose space their vectors are in."""
    from qdrant_client import models

    own = {MODEL_COLUMN: stamp.model, MAP_COLUMN: stamp.map, "vector_source": stamp.source}
    rows = [vector.tolist() for vector in vectors]
    return [
        models.PointStruct(
            id=identity, vector={vector_name: row} if vector_name else row, payload={**payload, **own}
        )
        for identity, row, payload in zip(ids, rows, payloads, strict=True)
    ]


def open_source(place: Place) -> QdrantSource:
    """Open a collection for reading."""
    return QdrantSource(place)


def open_sink(place: Place, source: Source, stamp: Stamp, *, width: int, force: bool) -> QdrantSink:
    """Open a collection for writing."""
    return QdrantSink(place, source, stamp, width, force)


def client(place: Place) -> Any:
    """Return the one client of a location: an embedded database allows no second one."""
    try:
        from qdrant_client import QdrantClient
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


def _vector_params(opened: Any, place: Place) -> tuple[str, Any]:
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


def _payloads(batch: Batch) -> list[dict[str, Any]]:
    if batch.columns is None:
        return [{} for _ in batch.ids]
    import pyarrow as pa

    table = (
        pa.Table.from_batches([batch.columns]) if isinstance(batch.columns, pa.RecordBatch) else batch.columns
    )
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    rows: list[dict[str, Any]] = table.drop_columns(nested).to_pylist()
    return rows


def _slices(rows: int) -> list[slice]:
    return [slice(start, min(start + UPSERT, rows)) for start in range(0, rows, UPSERT)]


def _point_id(given: Any) -> Any:
    """Return an id that Qdrant takes: an unsigned number or a UUID."""
    if isinstance(given, int | np.integer) and given >= 0:
        return int(given)
    import uuid

    try:
        return str(uuid.UUID(str(given)))
    except ValueError:
        # a stable UUID of the id's own text; the id itself stays in the payload
        return str(uuid.uuid5(uuid.NAMESPACE_URL, str(given)))
