"""LanceDB: a table of an embedded database; every batch is one committed version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from transship.atomic import atomic_folder, check_target
from transship.errors import DataError, MissingError, OutputError
from transship.types import Array
from transship.verbs.translate.stores.index import BesideRows, TableIndex
from transship.verbs.translate.stores.protocol import (
    ID_NAMES,
    STAMP_KEY,
    RowBatch,
    Stamp,
    Store,
    StorePlace,
    VectorSink,
    VectorSource,
    find_column,
    goes_on,
    stamp_of,
    stamped,
    to_matrix,
    vanished,
    vector_column,
)

# rows of one commit: what a kill can cost; smaller ones would leave many small files
COMMIT_ROWS = 32_768


class LanceSource(VectorSource):
    """Rows of one version of a table, so that later writes change nothing of a run."""

    def __init__(self, place: StorePlace) -> None:
        """Open the table at its latest version."""
        self.place = place
        self.table = open_table(place)
        self.version = int(self.table.version)
        self.table.checkout(self.version)
        self.schema: pa.Schema = self.table.schema
        self.rows = int(self.table.count_rows())
        self.id_column = find_column(self.schema.names, place.columns.id, ID_NAMES, place.text)
        self.vector_column = vector_column(self.schema, place)
        kind = self.schema.field(self.vector_column).type
        if not pa.types.is_fixed_size_list(kind):
            raise DataError(
                f"the vectors in '{self.vector_column}' have no fixed width",
                where=place.text,
                fix="name another with --vector-column, or write the table with a fixed width",
            )
        self.width = int(kind.list_size)
        self.stamp = stamp_of(self.schema)

    def fingerprint(self) -> str:
        return f"{self.place.location}#{self.place.name}@{self.version}-{self.rows}x{self.width}"

    def batches(self, size: int, start: int = 0) -> Iterator[RowBatch]:
        """Yield rows in the order of the table from `start` on."""
        for first in range(start, self.rows, size):
            try:
                rows = self.table.search().limit(min(size, self.rows - first)).offset(first).to_arrow()
            except (OSError, RuntimeError, ValueError) as error:
                raise vanished(self.place.text, first, error) from error
            column = rows.column(self.vector_column).combine_chunks()
            column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            ids = (
                rows.column(self.id_column).to_pylist()
                if self.id_column
                else np.arange(first, first + len(rows))
            )
            yield RowBatch(ids, to_matrix(column, self.width, self.place.text), rows)


class LanceSink(VectorSink):
    """Appends batches to a new table; rows are visible under a working name until the last one is there."""

    def __init__(
        self, place: StorePlace, source: VectorSource, stamp: Stamp, width: int, force: bool
    ) -> None:
        """Open or continue the working table."""
        if "://" not in place.location:
            folder = Path(place.location) / f"{place.name}.lance"
            check_target(folder, force=force, kind="cache")
            _check_table(folder)
        self.place, self.stamp, self.width, self.force = place, stamp, width, force
        self.database = connect(place.location)
        self.column = place.columns.vector or source.vector_column or "vector"
        self.work = f"{place.name}__partial"
        self.table = open_or_none(self.database, place.location, self.work)
        if self.table is not None:
            left = (self.table.schema.metadata or {}).get(STAMP_KEY.encode(), b"").decode()
            if not goes_on(left, stamp.to_json(), f"{place.location}#{self.work}", force=force):
                self.database.drop_table(self.work)
                self.table = None
        self.done = int(self.table.count_rows()) if self.table is not None else 0
        self.commit_rows = source.part_rows or COMMIT_ROWS
        self.waiting: list[pa.Table] = []

    def write(self, batch: RowBatch, vectors: Array) -> None:
        self.waiting.append(_stamped(batch, vectors, self.column, self.stamp))
        if sum(map(len, self.waiting)) >= self.commit_rows:
            self._commit()

    def finish(self) -> None:
        """Commit the rest and give the table its name."""
        self._commit()
        # embedded LanceDB cannot rename: a table is a folder, and takes the place of the old one in one step
        root = Path(self.place.location)
        with atomic_folder(root / f"{self.place.name}.lance", force=self.force, private=True) as draft:
            draft.rmdir()
            (root / f"{self.work}.lance").rename(draft)

    def close(self) -> None:
        """Leave what is committed for the next run."""
        self.waiting = []

    def _commit(self) -> None:
        if not self.waiting:
            return
        rows = pa.concat_tables(self.waiting)
        if self.table is None:
            self.table = self.database.create_table(self.work, data=rows)
        else:
            self.table.add(rows)
        self.done += rows.num_rows
        self.waiting = []


class LanceIndex(TableIndex):
    """A LanceDB table, searched by cosine."""

    def __init__(self, place: StorePlace) -> None:
        source = LanceSource(place)
        self.table, self.column = source.table, source.vector_column
        if source.id_column is None:
            raise DataError("has no id column", where=place.text, fix="name it with Columns(id=...)")
        self.key: str = source.id_column
        self.rows, self.location, self.name = source.rows, place.location, place.name

    def nearest(self, table: Any, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        ids, scores = [], []
        for query in queries:
            asked = table.search(query.astype(np.float32), vector_column_name=self.column)
            hits = asked.distance_type("cosine").limit(count).select([self.key, "_distance"]).to_arrow()
            ids.append(hits.column(self.key).to_pylist())
            scores.append(1.0 - hits.column("_distance").to_numpy())
        return ids, np.stack(scores)

    def stored(self, table: Any, ids: Sequence[Any]) -> Array:
        rows = self.rows_of(ids, table)
        pairs = zip(rows.column(self.key).to_pylist(), rows.column(self.column).to_pylist(), strict=True)
        vectors = dict(pairs)
        return np.asarray([vectors[identity] for identity in ids], dtype=np.float32)

    def rows_of(self, ids: Sequence[Any], table: Any = None) -> Any:
        """Return whole rows by id, in the table's own order."""
        listed = ", ".join(
            f"'{key.replace(chr(39), chr(39) * 2)}'" if isinstance(key, str) else str(key) for key in ids
        )
        asked = (self.table if table is None else table).search().where(f"{self.key} IN ({listed})")
        return asked.limit(len(ids)).to_arrow()

    def rows_beside(self, name: str, model: str) -> LanceRows:
        return LanceRows(self, name, model)


class LanceRows(BesideRows):
    """Rows of a second table with the same ids and other columns; every `add` is one commit."""

    def __init__(self, old: LanceIndex, name: str, model: str = "") -> None:
        """Name the table; it is made with the first row."""
        self.name, self.database, self.index = name, connect(old.location), old
        super().__init__(old, open_or_none(self.database, old.location, name), model)
        if self.place is not None:
            ids = self.place.search().select([old.key]).limit(self.place.count_rows()).to_arrow()
            self.note(ids.column(old.key).to_pylist())

    def add(self, ids: Sequence[Any], vectors: Array) -> None:
        """Insert rows with the other columns of the old ones, or replace them."""
        rows = self.index.rows_of(ids)
        places = {identity: number for number, identity in enumerate(ids)}
        order = [places[identity] for identity in rows.column(self.index.key).to_pylist()]
        batch = RowBatch(ids, vectors, rows)
        table = _stamped(batch, np.asarray(vectors)[order], self.index.column, self.stamp)
        if self.place is None:
            self.place = self.database.create_table(self.name, data=table)
        else:
            merge = self.place.merge_insert(self.index.key)
            merge.when_matched_update_all().when_not_matched_insert_all().execute(table)
        self.note(ids)


def _check_table(folder: Path) -> None:
    """Refuse to replace a folder that holds something beside a table."""
    others = [path.name for path in folder.glob("*") if path.name != "data" and not path.name.startswith("_")]
    if others:
        raise OutputError(
            f"it holds {others[0]}, which is no part of a table, and is kept",
            where=str(folder),
            fix="move that away, or choose another name",
        )


def _stamped(batch: RowBatch, vectors: Array, column: str, stamp: Stamp) -> pa.Table:
    """Return the rows with their stamp; of other notes LanceDB keeps its embedding function's only."""
    before = batch.columns.schema.metadata if batch.columns is not None else None
    kept = {key: value for key, value in (before or {}).items() if key == b"huggingface"}
    return stamped(batch, vectors, column, stamp, kept)


def connect(location: str) -> Any:
    """Connect to an embedded database, or say how to get LanceDB."""
    try:
        import lancedb  # an extra
    except ImportError as error:
        raise MissingError(
            "LanceDB is not installed", where="lance", fix="pip install 'transship[lance]'"
        ) from error
    return lancedb.connect(location)


def open_table(place: StorePlace) -> Any:
    """Open a table; one clear error when it is not there."""
    if not Path(place.location).is_dir():
        raise MissingError("there is no such folder", where=place.text, fix="check the path")
    database = connect(place.location)
    if place.name not in (names := _table_names(database)):
        raise MissingError(
            f"has no table '{place.name}'",
            where=place.location,
            fix=f"name one of: {', '.join(names) or 'none'}",
        )
    return database.open_table(place.name)


def open_or_none(database: Any, location: str, name: str) -> Any:
    """Return a table that is there; a kill before its first commit leaves an empty folder, which goes."""
    if name not in _table_names(database):
        return None
    try:
        return database.open_table(name)
    except ValueError:
        shutil.rmtree(Path(location) / f"{name}.lance")
        return None


def _table_names(database: Any) -> list[str]:
    names: list[str] = []
    token = None
    while True:
        page = database.list_tables(page_token=token, limit=1000)
        names += page.tables
        token = page.page_token
        if not token:
            return names


STORE = Store(LanceSource, LanceSink, LanceIndex)
