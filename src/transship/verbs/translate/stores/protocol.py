"""What a store has to be able to do, what travels between stores, and rows as Arrow tables."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from transship.errors import DataError, OutputError
from transship.types import Array
from transship.verbs.translate.settings import Columns

# per row, where the store has columns: whose space a vector lives in, and the map that brought it there
MODEL_COLUMN, MAP_COLUMN = "vector_model", "vector_map"
STAMP_KEY = "transship"
ID_NAMES = ("id", "_id", "ids", "key", "doc_id", "document_id", "uuid")
# endings of files of texts, which somebody may take for a store
TEXTS = (".jsonl", ".json", ".csv", ".tsv", ".txt")
VECTOR_NAMES = ("vector", "embedding", "embeddings", "vectors", "values", "emb")


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
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes | None) -> Stamp:
        """Read a stamp; what is none gives an empty one."""
        try:
            plain = json.loads(text or "{}")
            return cls(
                **{name: plain[name] for name in ("model", "map", "quality", "source") if name in plain}
            )
        except (ValueError, TypeError, KeyError, RecursionError):
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
        note: what a plan says of its rows, such as that they are approximate.
    """

    place: StorePlace
    rows: int
    width: int
    stamp: Stamp
    vector_column: str = ""
    files: Sequence[tuple[str, int]] = ()
    part_rows: int | None = None
    note: str = ""

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

    def kept(self, start: int) -> Path | None:
        """Return a file for what there is of the part that begins at a row; None on a remote file system."""


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


@dataclass(frozen=True)
class Store:
    """What a kind of store can do; its module has one under the name `STORE`.

    Attributes:
        source: opens it for reading.
        sink: opens it for writing, or goes on with what a stopped run left: the rows' source, their stamp,
            their width, and whether what is there may be replaced.
        index: opens it for searching in place.
        held_bytes: what writing so many rows of a width keeps in memory until its end.
        sweep: removes what a run had no time to remove after its last rename.
        write_queries: where a store can: writes an index that takes queries of the new model, and searches
            the old rows.
    """

    source: Callable[[StorePlace], VectorSource]
    sink: Callable[[StorePlace, VectorSource, Stamp, int, bool], VectorSink]
    index: Callable[[StorePlace], OldIndex]
    held_bytes: Callable[[int, int], int] = lambda rows, width: 0
    sweep: Callable[[StorePlace], None] = lambda place: None
    write_queries: Callable[[StorePlace, StorePlace, Array, Array, bool], int] | None = None


# -- what is refused ---------------------------------------------------------------------------------------


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


def texts_instead(where: str, ending: str) -> DataError:
    """Return the error for a file of texts that was given as a store of vectors."""
    fix = f"embed it: transship translate embed --model MODEL {where} vectors.parquet"
    return DataError(f"is no store of vectors: a {ending} file holds texts", where=where, fix=fix)


def no_parquet(files: list[str], where: str) -> DataError:
    """Return the error for a folder without Parquet files, by what there is in it."""
    tables = sorted({name.split("/")[0] for name in files if ".lance/" in name})
    if tables:
        fix = f"name one: {where.rstrip('/')}/{tables[0]}"
        return DataError(f"is a folder of LanceDB tables ({', '.join(tables)})", where=where, fix=fix)
    if "map.json" in files:
        return DataError("is a map, no store of vectors", where=where, fix="give MAP before IN and OUT")
    return DataError("holds no .parquet file", where=where, fix="give a folder of Parquet files")


def goes_on(left: str | None, wanted: str, where: str, *, force: bool) -> bool:
    """Return whether a run goes on with what a stopped one left, by the note of both.

    What another run left is refused; with `force` it is not gone on with.
    """
    if left is None or left == wanted:
        return left is not None
    if not force:
        raise DataError(
            "holds the beginning of another translation (other map or other source)",
            where=where,
            fix="finish that one, or pass --force to start anew",
        )
    return False


# -- rows as Arrow tables, for the stores that have columns ------------------------------------------------


def as_table(batch: RowBatch) -> pa.Table:
    """Return a batch's rows as a table: its columns, or its ids and payloads."""
    if isinstance(batch.columns, pa.RecordBatch):
        return pa.Table.from_batches([batch.columns])
    if batch.columns is not None:
        return batch.columns
    ids = batch.ids if isinstance(batch.ids, np.ndarray) else list(batch.ids)
    columns: dict[str, Any] = {"id": pa.array(ids)}
    if batch.payloads is not None:
        columns["payload"] = pa.array([json.dumps(payload, default=str) for payload in batch.payloads])
    return pa.table(columns)


def stamped(batch: RowBatch, vectors: Array, column: str, stamp: Stamp, about: Any = None) -> pa.Table:
    """Return rows as they are stored: all columns, the new vectors in `column`, and whose they are.

    `about` is what the schema says beside the stamp; by default what it said before.
    """
    width = int(vectors.shape[1])
    values = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(values, width)
    field, table = pa.field(column, pa.list_(pa.float32(), width)), as_table(batch)
    if column in table.column_names:
        table = table.set_column(table.column_names.index(column), field, lists)
    else:
        table = table.append_column(field, lists)
    for name, value in ((MODEL_COLUMN, stamp.model), (MAP_COLUMN, stamp.map)):
        if name in table.column_names:
            table = table.drop_columns([name])
        # plain strings: Parquet's own dictionary keeps them small
        table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
    about = (table.schema.metadata or {}) if about is None else about
    return table.replace_schema_metadata({**about, STAMP_KEY.encode(): stamp.to_json().encode()})


def stamp_of(schema: pa.Schema) -> Stamp:
    """Return whose space the vectors of a table are in."""
    return Stamp.from_json((schema.metadata or {}).get(STAMP_KEY.encode()))


def vector_column(schema: pa.Schema, place: StorePlace) -> str:
    """Return the column that is asked for, that has a usual name, or that alone holds vectors."""
    lists = [field.name for field in schema if _is_vector(field.type)]
    name = find_column(schema.names, place.columns.vector, VECTOR_NAMES, place.text)
    if name is None and len(lists) == 1:
        name = lists[0]
    if name is None or name not in lists:
        raise DataError(
            f"has no column of vectors{'' if name is None else f' in {name!r}'}",
            where=place.text,
            fix=f"name it with --vector-column; there are: {', '.join(schema.names)}",
        )
    return name


def to_matrix(column: Any, width: int, where: str) -> Array:
    """Return a list column as [rows, width]; missing or ragged vectors are refused."""
    if column.null_count:
        raise DataError(
            f"{column.null_count} rows have no vector",
            where=where,
            fix="remove rows without vectors, or embed them",
        )
    flat = column.flatten()
    if len(flat) != len(column) * width or (
        not pa.types.is_fixed_size_list(column.type) and len(set(column.value_lengths().to_pylist())) > 1
    ):
        raise DataError(f"vectors are not all {width} wide", where=where, fix="give vectors of one model")
    values: Array = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), width)


def _is_vector(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and pa.types.is_floating(kind.value_type))
