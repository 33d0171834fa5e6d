"""What a store has to be able to do, and what travels between stores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from transship.errors import DataError

Array = np.ndarray[Any, Any]
# per row, where the store has columns: whose space a vector lives in, and the map that brought it there
MODEL_COLUMN, MAP_COLUMN = "vector_model", "vector_map"
STAMP_KEY = "transship"
ID_NAMES = ("id", "_id", "ids", "key", "doc_id", "document_id", "uuid")
VECTOR_NAMES = ("vector", "embedding", "embeddings", "vectors", "values", "emb")


@dataclass(frozen=True)
class Columns:
    """Names of the columns, where the usual ones do not hold."""

    id: str | None = None
    vector: str | None = None


@dataclass(frozen=True)
class Place:
    """A store by name: what kind it is, where it lies, which table; `text` is what the user wrote."""

    kind: str
    location: str
    name: str
    text: str
    columns: Columns = field(default_factory=Columns)


@dataclass(frozen=True)
class Stamp:
    """Provenance that a store carries: whose space its vectors are in.

    Attributes:
        model: the model's name; empty when nobody said.
        map: hash of the map that made the vectors; empty for native ones.
        quality: what was measured of that map.
        source: fingerprint of the store that was translated.
    """

    model: str = ""
    map: str = ""
    quality: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def to_json(self) -> str:
        """Return the stamp as one line of JSON."""
        plain = {"model": self.model, "map": self.map, "quality": dict(self.quality), "source": self.source}
        return json.dumps(plain, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes | None) -> Stamp:
        """Read a stamp; what is none gives an empty one."""
        try:
            plain = json.loads(text or "{}")
            return cls(
                *(
                    plain.get(name, default)
                    for name, default in (("model", ""), ("map", ""), ("quality", {}), ("source", ""))
                )
            )
        except (ValueError, AttributeError):
            return cls()


@dataclass(frozen=True)
class Batch:
    """Some rows: ids [rows], vectors [rows, width], and everything else of them.

    Attributes:
        ids: as the store has them.
        vectors: float array.
        columns: the other columns as a pyarrow table, for stores with columns.
        payloads: the other fields as dictionaries, for stores with payloads.
    """

    ids: Any
    vectors: Array
    columns: Any = None
    payloads: list[dict[str, Any]] | None = None


class Source(Protocol):
    """A store that is read."""

    place: Place
    rows: int
    width: int
    stamp: Stamp

    def fingerprint(self) -> str:
        """Return what changes when the rows may have changed."""

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rows from `start` on, in an order that stays the same while the store is unchanged."""

    def close(self) -> None:
        """Let go of files and connections."""


class Sink(Protocol):
    """A store that is written, batch after batch, and that knows after a kill where to go on."""

    done: int

    def write(self, batch: Batch, vectors: Array) -> None:
        """Add the rows of `batch` with `vectors` in the place of its own; on return they survive a kill or
        will be asked for again.
        """

    def finish(self) -> None:
        """Make the whole visible under its name."""

    def close(self) -> None:
        """Let go of files and connections without finishing."""


def find_column(
    names: list[str], wanted: str | None, usual: tuple[str, ...], what: str, where: str
) -> str | None:
    """Return the column that is asked for, or the first of the usual names that exists."""
    if wanted is not None:
        if wanted not in names:
            raise DataError(f"has no column '{wanted}'", where=where, fix=f"name one of: {', '.join(names)}")
        return wanted
    return next((name for name in usual if name in names), None)


def gone(where: str, done: int, error: Exception) -> DataError:
    """Return the error for a store that disappeared while it was read."""
    return DataError(
        f"could not be read any further after row {done:,} ({type(error).__name__}: {error})",
        where=where,
        fix="bring it back and run the same command again: it goes on from there",
    )


def refuse_half_done(where: str) -> DataError:
    """Return the error for the leftovers of another run."""
    return DataError(
        "holds the beginning of another translation (other map or other source)",
        where=where,
        fix="finish that one, or pass --force to start anew",
    )
