"""Rows that have moved to the new model: in memory, in a folder, or written back beside the old ones.

What `add` returned from survives a kill, and adding a row again changes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from transship.errors import DataError
from transship.verbs.translate.lazy.old import LanceIndex, OldIndex, QdrantIndex
from transship.verbs.translate.nearest import neighbours, unit_rows
from transship.verbs.translate.stores import Stamp
from transship.verbs.translate.vectors import plain_id

Array = np.ndarray[Any, Any]


class NewRows(Protocol):
    """Vectors of the new model by id, as far as they are known."""

    def __len__(self) -> int:
        """Return how many rows have moved."""

    def __contains__(self, identity: object) -> bool:
        """Return whether a row has moved."""

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Keep the vectors of ids."""

    def some(self, count: int) -> list[Any]:
        """Return at most `count` ids that have moved."""

    def many(self, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids that have moved, [ids, width]."""

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return ids and cosines of the nearest moved rows to each query, best first."""


class MemoryRows:
    """Rows that live as long as this object."""

    def __init__(self) -> None:
        """Start without rows."""
        self.places: dict[Any, int] = {}
        self.rows: Any = None

    def __len__(self) -> int:
        """Return how many rows have moved."""
        return len(self.places)

    def __contains__(self, identity: object) -> bool:
        """Return whether a row has moved."""
        return identity in self.places

    def some(self, count: int) -> list[Any]:
        """Return the first ids that have moved."""
        return list(islice(self.places, count))

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Keep the vectors of ids that are not there yet."""
        new = [number for number, identity in enumerate(ids) if identity not in self.places]
        if new:
            self._append(
                [plain_id(ids[number]) for number in new], np.asarray(vectors, dtype=np.float32)[new]
            )

    def many(self, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids that have moved."""
        return np.asarray(self.rows[[self.places[identity] for identity in ids]])

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest moved rows, all of them compared."""
        if not self.places:
            return [[] for _ in queries], np.empty((len(queries), 0), np.float32)
        rows, names = np.asarray(self.rows), list(self.places)
        found = neighbours(queries, rows, min(count, len(names)))
        pairs = zip(found, unit_rows(queries), strict=True)
        scores = np.stack([unit_rows(rows[row]) @ query for row, query in pairs])
        return [[names[row] for row in some] for some in found], scores

    def _append(self, ids: list[Any], vectors: Array) -> None:
        self.rows = vectors if self.rows is None else np.concatenate([self.rows, vectors])
        self._note(ids)

    def _note(self, ids: list[Any]) -> None:
        first = len(self.places)
        self.places.update({identity: first + number for number, identity in enumerate(ids)})


class FolderRows(MemoryRows):
    """Rows in a folder: `vectors.f32` and, line by line, `ids.jsonl`; both only ever grow.

    A row counts once its id's line is whole, which is written after the vector: what a kill left behind
    that is cut off when the folder is opened again.
    """

    def __init__(self, folder: str | Path, model: str = "") -> None:
        """Open or make the folder."""
        super().__init__()
        self.folder, self.model, self.width = Path(folder), model, 0
        self.folder.mkdir(parents=True, exist_ok=True)
        self.vectors, self.ids = self.folder / "vectors.f32", self.folder / "ids.jsonl"
        about = self.folder / "about.json"
        if about.is_file():
            known = json.loads(about.read_text(encoding="utf-8"))
            if model and known["model"] and known["model"] != model:
                raise DataError(
                    f"holds vectors of '{known['model']}', not of '{model}'",
                    where=str(folder),
                    fix="write back to another folder",
                )
            self.width = int(known["width"])
            self._recover()

    def _append(self, ids: list[Any], vectors: Array) -> None:
        if not self.width:
            self.width = int(vectors.shape[1])
            draft = self.folder / "about.draft"
            draft.write_text(json.dumps({"width": self.width, "model": self.model}), encoding="utf-8")
            os.replace(draft, self.folder / "about.json")
        if vectors.shape[1] != self.width:
            raise DataError(
                f"vectors are {vectors.shape[1]} wide, and those written before are {self.width}",
                where=str(self.folder),
                fix="write back to another folder",
            )
        with self.vectors.open("ab") as file:
            file.write(np.ascontiguousarray(vectors).tobytes())
        with self.ids.open("ab") as file:
            file.write("".join(json.dumps(identity) + "\n" for identity in ids).encode())
        self._note(ids)
        self._map()

    def _recover(self) -> None:
        """Read whole lines, and cut both files to the rows that they name."""
        text = self.ids.read_bytes() if self.ids.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        ids = [json.loads(line) for line in whole.splitlines()]
        size = self.vectors.stat().st_size if self.vectors.is_file() else 0
        if size < len(ids) * self.width * 4:
            raise DataError(
                f"names {len(ids)} rows and holds {size // (self.width * 4)}",
                where=str(self.folder),
                fix="remove the folder: its rows are embedded again as they are used",
            )
        if ids or size:
            os.truncate(self.vectors, len(ids) * self.width * 4)
            os.truncate(self.ids, len(whole))
        self._note(ids)
        self._map()

    def _map(self) -> None:
        if self.places:
            self.rows = np.memmap(self.vectors, np.float32, "r", shape=(len(self.places), self.width))


class _BesideRows:
    """Rows of a second collection or table beside the old one.

    Attributes:
        old: the index that is moved.
        place: what the store knows the new rows by: a collection's name, or an open table.
        known: ids that have moved.
    """

    def __init__(self, old: Any, place: Any, model: str) -> None:
        """Start without rows."""
        self.old, self.place, self.stamp = old, place, Stamp(model)
        self.known: set[Any] = set()

    def __len__(self) -> int:
        """Return how many rows have moved."""
        return len(self.known)

    def __contains__(self, identity: object) -> bool:
        """Return whether a row has moved."""
        return identity in self.known

    def some(self, count: int) -> list[Any]:
        """Return some ids that have moved."""
        return list(islice(self.known, count))

    def many(self, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids that have moved."""
        found: Array = self.old.stored(self.place, ids)
        return found

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest moved rows."""
        if not self.known:
            return [[] for _ in queries], np.empty((len(queries), 0), np.float32)
        found: tuple[list[list[Any]], Array] = self.old.nearest(
            self.place, queries, min(count, len(self.known))
        )
        return found


class QdrantRows(_BesideRows):
    """Points of a second collection with the same ids and payloads; upserts come twice without harm."""

    def __init__(self, old: QdrantIndex, name: str, model: str = "") -> None:
        """Name the collection; it is made with the first row."""
        super().__init__(old, name, model)
        self.client = old.client
        if self.client.collection_exists(name):
            offset: Any = None
            while True:
                points, offset = self.client.scroll(name, limit=1024, offset=offset, with_payload=False)
                self.known.update(point.id for point in points)
                if offset is None:
                    break

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Upsert points with the payloads of the old ones."""
        from transship.verbs.translate.stores.qdrant import create, points

        if not self.client.collection_exists(self.place):
            create(self.client, self.place, int(vectors.shape[1]), self.old.params.distance, self.old.vector)
        found = {
            point.id: dict(point.payload or {})
            for point in self.client.retrieve(self.old.name, list(ids), with_payload=True)
        }
        payloads = [found.get(identity, {}) for identity in ids]
        made = points(ids, vectors, payloads, self.old.vector, self.stamp)
        self.client.upsert(self.place, made, wait=True)
        self.known.update(ids)


class LanceRows(_BesideRows):
    """Rows of a second table with the same ids and other columns; every `add` is one commit."""

    def __init__(self, old: LanceIndex, name: str, model: str = "") -> None:
        """Name the table; it is made with the first row."""
        from transship.verbs.translate.stores.lance import connect, open_or_none

        self.name, self.database = name, connect(old.location)
        super().__init__(old, open_or_none(self.database, old.location, name), model)
        if self.place is not None:
            ids = self.place.search().select([old.key]).limit(self.place.count_rows()).to_arrow()
            self.known = set(ids.column(old.key).to_pylist())

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Insert rows with the other columns of the old ones, or replace them."""
        from transship.verbs.translate.stores.lance import stamped
        from transship.verbs.translate.stores.protocol import Batch

        rows = self.old.rows_of(ids)
        places = {identity: number for number, identity in enumerate(ids)}
        order = [places[identity] for identity in rows.column(self.old.key).to_pylist()]
        made = stamped(Batch(ids, vectors, rows), np.asarray(vectors)[order], self.old.column, self.stamp)
        if self.place is None:
            self.place = self.database.create_table(self.name, data=made)
        else:
            merge = self.place.merge_insert(self.old.key)
            merge.when_matched_update_all().when_not_matched_insert_all().execute(made)
        self.known.update(ids)


def open_rows(old: OldIndex, where: str | Path | bool | None, model: str = "") -> NewRows:
    """Return where new vectors go: memory, a second table or collection, or a folder.

    True takes the old name with `-new` added. For Qdrant and LanceDB `where` is the name of the collection or
    table beside the old one; for everything else it is a folder.
    """
    if where is None or where is False:
        return MemoryRows()
    if isinstance(old, QdrantIndex | LanceIndex):
        name = f"{old.name}-new" if where is True else str(where)
        if name == old.name:
            raise DataError("is the old index itself", where=name, fix="write back under another name")
        return QdrantRows(old, name, model) if isinstance(old, QdrantIndex) else LanceRows(old, name, model)
    if where is True:
        location = getattr(old, "location", "")
        if not location:
            raise DataError("an index in memory has no place", where="write_back", fix="name a folder")
        where = f"{location}-new"
    return FolderRows(where, model)
