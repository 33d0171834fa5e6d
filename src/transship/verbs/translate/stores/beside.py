"""Rows of a second collection or table beside the old one, as far as they have moved."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from transship.types import Array
from transship.verbs.translate.stores.protocol import Stamp


class TableIndex(Protocol):
    """An index that reads and searches any table or collection with the columns of its own."""

    def stored(self, place: Any, ids: Sequence[Any], /) -> Array:
        """Return the vectors of ids."""

    def nearest(self, place: Any, queries: Array, count: int, /) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows."""


class BesideRows:
    """Rows of a second collection or table beside the old one.

    Attributes:
        old: the index that is moved.
        place: what the store knows the new rows by: a collection's name, or an open table.
        known: ids that have moved.
    """

    def __init__(self, old: TableIndex, place: Any, model: str) -> None:
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
        return self.old.stored(self.place, ids)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest moved rows."""
        if not self.known:
            return [[] for _ in queries], np.empty((len(queries), 0), np.float32)
        return self.old.nearest(self.place, queries, min(count, len(self.known)))
