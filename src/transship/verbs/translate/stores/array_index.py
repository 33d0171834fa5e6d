"""Rows in memory as an index: every row is compared with every query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transship.errors import DataError
from transship.types import Array
from transship.verbs.translate.nearest import neighbours, unit_rows
from transship.verbs.translate.stores.protocol import VectorSource


class ArrayIndex:
    """Rows in memory (or a memory map), searched by cosine."""

    def __init__(self, ids: Sequence[Any], rows: Array, location: str = "") -> None:
        """Keep ids and rows."""
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
        """Return the number of rows."""
        return len(self.ids)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows by cosine."""
        return search_rows(queries, self.ids, self.rows, count)

    def vectors(self, ids: Sequence[Any]) -> Array:
        """Return stored rows."""
        return np.asarray(self.rows[[self.places[identity] for identity in ids]])


def search_rows(queries: Array, ids: Sequence[Any], rows: Array, count: int) -> tuple[list[list[Any]], Array]:
    """Return ids and cosines of the nearest rows to each query, best first."""
    ranked = neighbours(queries, rows, count)
    pairs = zip(ranked, unit_rows(queries), strict=True)
    scores = np.stack([unit_rows(rows[row]) @ query for row, query in pairs])
    return [[ids[row] for row in near] for near in ranked], scores
