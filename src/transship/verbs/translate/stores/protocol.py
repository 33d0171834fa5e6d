"""What a store has to be able to do, and what travels between stores."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from transship.errors import DataError, OutputError
from transship.types import Array

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
class StorePlace:
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
class RowBatch:
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


@dataclass(frozen=True)
class RowsDone:
    """One step of a run: rows done so far, and of how many."""

    done: int
    rows: int


class PartRange(NamedTuple):
    """Rows [start, stop) of the whole, which one process reads or writes."""

    start: int
    stop: int


class VectorSource(ABC):
    """A store that is read.

    Attributes:
        place: its name.
        rows: how many.
        width: of its vectors.
        stamp: whose space they are in.
        vector_column: the column or named vector; empty where the store has none.
        files: name and rows of each of its files, where there may be several.
        part_rows: rows of one part of what is made of it; None: as the sink has it.
    """

    place: StorePlace
    rows: int
    width: int
    stamp: Stamp
    vector_column: str = ""
    files: Sequence[tuple[str, int]] = ()
    part_rows: int | None = None

    @abstractmethod
    def fingerprint(self) -> str:
        """Return what changes when the rows may have changed."""

    @abstractmethod
    def batches(self, size: int, start: int = 0) -> Iterator[RowBatch]:
        """Yield the rows from `start` on, in an order that stays the same while the store is unchanged."""

    def all_ids(self) -> Array | None:
        """Return the ids of all rows, or None when they are row numbers."""
        ids = np.asarray([identity for batch in self.batches(8192) for identity in batch.ids])
        return None if np.array_equal(ids, np.arange(len(ids))) else ids

    def close(self) -> None:
        """Let go of files and connections."""
        return


class SplitSource(VectorSource):
    """A source of which any process may read any rows; it travels to workers."""

    @abstractmethod
    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[RowBatch]:
        """Yield the rows from `start` up to `stop`."""


class VectorSink(ABC):
    """A store that is written, batch after batch, and that knows after a kill where to go on.

    Attributes:
        done: rows that are safe.
    """

    done: int

    @abstractmethod
    def write(self, batch: RowBatch, vectors: Array) -> None:
        """Add the rows of `batch` with `vectors` in the place of its own; on return they survive a kill or
        will be asked for again.
        """

    @abstractmethod
    def finish(self) -> None:
        """Make the whole visible under its name."""

    def close(self) -> None:
        """Let go of files and connections without finishing; what is noted is safe."""
        return


class PartWriter(Protocol):
    """What a process needs to write a part; it travels to workers."""

    def write(self, part: PartRange, pieces: Iterable[tuple[RowBatch, Array]]) -> Iterator[int]:
        """Write a part, yielding its rows so far; it counts when its last row is in, and only then."""


class PartSink(VectorSink):
    """A sink whose parts any process may write, in any order."""

    writer: PartWriter

    @abstractmethod
    def missing(self) -> list[PartRange]:
        """Return the parts that are still to be written, in order."""


class OldIndex(Protocol):
    """What an index that moves is asked: the nearest rows, and the vectors of rows."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return ids and scores of the nearest rows to each query, best first."""

    def vectors(self, ids: Sequence[Any]) -> Array:
        """Return the stored vectors of ids."""


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


class Store(Protocol):
    """The functions of a store's module."""

    def open_source(self, place: StorePlace) -> VectorSource:
        """Open it for reading."""

    def open_sink(
        self, place: StorePlace, source: VectorSource, stamp: Stamp, width: int, force: bool
    ) -> VectorSink:
        """Open it for writing, or go on with what a stopped run left."""

    def open_index(self, place: StorePlace) -> OldIndex:
        """Open it for searching in place."""

    def held_bytes(self, rows: int, width: int) -> int:
        """Return what writing keeps in memory until its end."""

    def sweep(self, place: StorePlace) -> None:
        """Remove what a run had no time to remove after its last rename."""


def find_column(names: list[str], wanted: str | None, usual: tuple[str, ...], where: str) -> str | None:
    """Return the column that is asked for, or the first of the usual names that exists."""
    if wanted is not None:
        if wanted not in names:
            raise DataError(f"has no column '{wanted}'", where=where, fix=f"name one of: {', '.join(names)}")
        return wanted
    return next((name for name in usual if name in names), None)


def vanished(where: str, done: int, error: Exception) -> DataError:
    """Return the error for a store that disappeared while it was read."""
    return DataError(
        f"could not be read any further after row {done:,} ({type(error).__name__}: {error})",
        where=where,
        fix="bring it back and run the same command again: it goes on from there",
    )


def exists_already(where: str) -> OutputError:
    """Return the error for a target that is there."""
    return OutputError(
        "it exists already", where=where, fix="pass --force to replace it, or choose another name"
    )


def refuse_half_done(where: str) -> DataError:
    """Return the error for the leftovers of another run."""
    return DataError(
        "holds the beginning of another translation (other map or other source)",
        where=where,
        fix="finish that one, or pass --force to start anew",
    )
