"""An index that moves: its old rows, searched in place, and the rows that have moved to the new model.

Rows that have moved lie in memory or in a folder; tables and collections have their own. What `add` returned
from survives a kill, and adding a row again changes nothing.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from transship.atomic import write_json
from transship.errors import DataError
from transship.locks import locked
from transship.types import Array
from transship.verbs.translate.maps.vectors import neighbours, plain_id, unit_rows
from transship.verbs.translate.stores.protocol import OldIndex, Stamp, VectorSource


class ArrayIndex:
    """Rows in memory (or a memory map), searched by cosine: every row is compared with every query."""

    def __init__(self, ids: Sequence[Any], rows: Array, location: str = "") -> None:
        self.location = location
        if len(ids) != len(rows):
            raise DataError(f"{len(ids)} ids for {len(rows)} rows", where="index", fix="give one id per row")
        self.ids, self.rows = list(ids), rows
        self.places = {identity: row for row, identity in enumerate(self.ids)}

    @classmethod
    def of(cls, source: VectorSource) -> ArrayIndex:
        """Read a store whole."""
        batches = list(source.batches(8192))
        ids = [identity for batch in batches for identity in batch.ids]
        return cls(ids, np.concatenate([batch.vectors for batch in batches]), source.place.location)

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        return search_rows(queries, self.ids, self.rows, count)

    def vectors(self, ids: Sequence[Any]) -> Array:
        return np.asarray(self.rows[[self.places[identity] for identity in ids]])


class TableIndex(ABC):
    """An index of a database that can hold a second table, or collection, with the same columns.

    Attributes:
        table: what the store knows the rows by: a collection's name, or an open table.
        rows: how many.
        name: of the table.
        location: of the database.
    """

    table: Any
    rows: int
    name: str
    location: str = ""

    def __len__(self) -> int:
        return self.rows

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        return self.nearest(self.table, queries, count)

    def vectors(self, ids: Sequence[Any]) -> Array:
        return self.stored(self.table, ids)

    @abstractmethod
    def nearest(self, table: Any, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return ids and scores of the nearest rows of a table with the same columns."""

    @abstractmethod
    def stored(self, table: Any, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids in a table with the same columns."""

    @abstractmethod
    def rows_beside(self, name: str, model: str) -> NewRows:
        """Return the rows of a second table."""


class NewRows(ABC):
    """Vectors of the new model by id, as far as they are known.

    Attributes:
        known: ids that have moved.
    """

    known: dict[Any, int]

    def __len__(self) -> int:
        return len(self.known)

    def __contains__(self, identity: object) -> bool:
        return identity in self.known

    def some(self, count: int) -> list[Any]:
        """Return the first ids that have moved, at most `count`."""
        return list(islice(self.known, count))

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return ids and cosines of the nearest moved rows to each query, best first."""
        if not self.known:
            return [[] for _ in queries], np.empty((len(queries), 0), np.float32)
        return self.nearest(queries, min(count, len(self.known)))

    @abstractmethod
    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Keep the vectors of ids."""

    @abstractmethod
    def many(self, ids: Sequence[Any]) -> Array:
        """Return the vectors of ids that have moved, [ids, width]."""

    @abstractmethod
    def nearest(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return ids and cosines of the nearest of some moved rows."""


class BesideRows(NewRows):
    """Rows of a second table beside the old one.

    Attributes:
        old: the index that is moved.
        place: what the store knows the new rows by: a collection's name, or an open table.
    """

    def __init__(self, old: TableIndex, place: Any, model: str) -> None:
        self.old, self.place, self.stamp = old, place, Stamp(model)
        self.known = {}

    def note(self, ids: Iterable[Any]) -> None:
        """Take note that the rows of ids are stored."""
        self.known.update(dict.fromkeys(ids, 0))

    def many(self, ids: Sequence[Any]) -> Array:
        return self.old.stored(self.place, ids)

    def nearest(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest moved rows, by the store's own search."""
        return self.old.nearest(self.place, queries, count)


class MemoryRows(NewRows):
    """Rows that live as long as this object; `known` numbers them."""

    def __init__(self) -> None:
        self.known = {}
        self.rows: Any = None

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Keep the vectors of ids that are not there yet."""
        new = [number for number, identity in enumerate(ids) if identity not in self.known]
        if new:
            self._append(
                [plain_id(ids[number]) for number in new], np.asarray(vectors, dtype=np.float32)[new]
            )

    def many(self, ids: Sequence[Any]) -> Array:
        return np.asarray(self.rows[[self.known[identity] for identity in ids]])

    def nearest(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest moved rows, all of them compared."""
        return search_rows(queries, list(self.known), np.asarray(self.rows), count)

    def _append(self, ids: list[Any], vectors: Array) -> None:
        self.rows = vectors if self.rows is None else np.concatenate([self.rows, vectors])
        self._note(ids)

    def _note(self, ids: list[Any]) -> None:
        first = len(self.known)
        self.known.update({identity: first + number for number, identity in enumerate(ids)})


class FolderRows(MemoryRows):
    """Rows in a folder: `vectors.f32` and, line by line, `ids.jsonl`; both only ever grow.

    A row counts once its id's line is whole, which is written after the vector: what a kill or a full disk
    left behind that is cut off before the next row. Processes take turns, and read what others have added.
    """

    def __init__(self, folder: str | Path, model: str = "") -> None:
        """Open or make the folder."""
        super().__init__()
        self.folder, self.model, self.width = Path(folder), model, 0
        self.folder.mkdir(parents=True, exist_ok=True)
        self.vectors, self.ids, self.sizes = self.folder / "vectors.f32", self.folder / "ids.jsonl", (0, 0)
        with locked(self.folder, wait=True):
            self._refresh()

    def _refresh(self) -> None:
        """Read what is in the folder, if somebody else wrote there."""
        about = self.folder / "about.json"
        if self._sizes() == self.sizes or not about.is_file():
            return
        known = json.loads(about.read_text(encoding="utf-8"))
        if self.model and known["model"] and known["model"] != self.model:
            raise DataError(
                f"holds vectors of '{known['model']}', not of '{self.model}'",
                where=str(self.folder),
                fix="write back to another folder",
            )
        self.width = int(known["width"])
        self._recover()

    def _sizes(self) -> tuple[int, int]:
        first, second = (file.stat().st_size if file.is_file() else 0 for file in (self.vectors, self.ids))
        return first, second

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Keep the vectors of ids that are not there yet, in this process or another."""
        with locked(self.folder, wait=True):
            self._refresh()
            super().add(ids, vectors)

    def _append(self, ids: list[Any], vectors: Array) -> None:
        if not self.width:
            self.width = int(vectors.shape[1])
            write_json(self.folder / "about.json", {"width": self.width, "model": self.model}, force=True)
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
        self.sizes = self._sizes()
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
        for file, length in ((self.vectors, len(ids) * self.width * 4), (self.ids, len(whole))):
            if file.is_file():  # a kill may have come before the first of them
                os.truncate(file, length)
        self.known, self.sizes = {}, self._sizes()
        self._note(ids)
        self._map()

    def _map(self) -> None:
        if self.known:
            self.rows = np.memmap(self.vectors, np.float32, "r", shape=(len(self.known), self.width))


def open_rows(old: OldIndex, where: str | Path | bool | None, model: str = "") -> NewRows:
    """Return where new vectors go: memory, a second table or collection, or a folder.

    True takes the old name with `-new` added. For Qdrant and LanceDB `where` is the name of the collection or
    table beside the old one; for everything else it is a folder.
    """
    if where is None or where is False:
        return MemoryRows()
    if isinstance(old, TableIndex):
        name = f"{old.name}-new" if where is True else str(where)
        if name == old.name:
            raise DataError("is the old index itself", where=name, fix="write back under another name")
        return old.rows_beside(name, model)
    if where is True:
        location = getattr(old, "location", "")
        if not location:
            raise DataError("an index in memory has no place", where="write_back", fix="name a folder")
        where = f"{location}-new"
    return FolderRows(where, model)


def search_rows(queries: Array, ids: Sequence[Any], rows: Array, count: int) -> tuple[list[list[Any]], Array]:
    """Return ids and cosines of the nearest rows to each query, best first."""
    ranked = neighbours(queries, rows, count)
    pairs = zip(ranked, unit_rows(queries), strict=True)
    scores = np.stack([unit_rows(rows[row]) @ query for row, query in pairs])
    return [[ids[row] for row in near] for near in ranked], scores
