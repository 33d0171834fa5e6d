"""Rows that have moved to the new model: in memory or in a folder; tables and collections have their own.

What `add` returned from survives a kill, and adding a row again changes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from transship.atomic import write_json
from transship.errors import DataError
from transship.types import Array
from transship.verbs.translate.stores.array_index import search_rows
from transship.verbs.translate.stores.protocol import NewRows, OldIndex
from transship.verbs.translate.vectors import plain_id


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
        return search_rows(queries, list(self.places), np.asarray(self.rows), min(count, len(self.places)))

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


def open_rows(old: OldIndex, where: str | Path | bool | None, model: str = "") -> NewRows:
    """Return where new vectors go: memory, a second table or collection, or a folder.

    True takes the old name with `-new` added. For Qdrant and LanceDB `where` is the name of the collection or
    table beside the old one; for everything else it is a folder.
    """
    if where is None or where is False:
        return MemoryRows()
    rows_beside = getattr(old, "rows_beside", None)  # of stores with tables or collections
    if rows_beside is not None:
        own = str(getattr(old, "name", ""))
        name = f"{own}-new" if where is True else str(where)
        if name == own:
            raise DataError("is the old index itself", where=name, fix="write back under another name")
        rows: NewRows = rows_beside(name, model)
        return rows
    if where is True:
        location = getattr(old, "location", "")
        if not location:
            raise DataError("an index in memory has no place", where="write_back", fix="name a folder")
        where = f"{location}-new"
    return FolderRows(where, model)
