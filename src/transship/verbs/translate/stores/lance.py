"""LanceDB: a table of an embedded database; every batch is one committed version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from transship.errors import DataError, MissingError, OutputError
from transship.verbs.translate.stores.parquet import as_table, to_matrix
from transship.verbs.translate.stores.protocol import (
    ID_NAMES,
    MAP_COLUMN,
    MODEL_COLUMN,
    STAMP_KEY,
    VECTOR_NAMES,
    Array,
    Batch,
    Place,
    Source,
    Stamp,
    find_column,
    gone,
    refuse_half_done,
)

# rows of one commit: what a kill can cost; smaller ones would leave many small files
COMMIT_ROWS = 32_768


class LanceSource:
    """Rows of one version of a table, so that later writes change nothing of a run."""

    def __init__(self, place: Place) -> None:
        """Open the table at its latest version."""
        self.place = place
        self.table = open_table(place)
        self.version = int(self.table.version)
        self.table.checkout(self.version)
        self.schema: pa.Schema = self.table.schema
        self.rows = int(self.table.count_rows())
        names = self.schema.names
        self.id_column = find_column(names, place.columns.id, ID_NAMES, "id", place.text)
        self.vector_column = _vector_column(self.schema, place)
        self.width = int(self.schema.field(self.vector_column).type.list_size)
        self.stamp = Stamp.from_json((self.schema.metadata or {}).get(STAMP_KEY.encode()))

    def fingerprint(self) -> str:
        """Return the version and size of the table."""
        return f"{self.place.location}#{self.place.name}@{self.version}-{self.rows}x{self.width}"

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield rows in the order of the table from `start` on."""
        for first in range(start, self.rows, size):
            try:
                found = self.table.search().limit(min(size, self.rows - first)).offset(first).to_arrow()
            except (OSError, RuntimeError, ValueError) as error:
                raise gone(self.place.text, first, error) from error
            column = found.column(self.vector_column).combine_chunks()
            column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            ids = (
                found.column(self.id_column).to_pylist()
                if self.id_column
                else np.arange(first, first + len(found))
            )
            yield Batch(ids, to_matrix(column, self.width, self.place.text), found)

    def close(self) -> None:
        """Nothing is kept open."""


class LanceSink:
    """Appends batches to a new table; rows are visible under a working name until the last one is there."""

    def __init__(self, place: Place, source: Source, stamp: Stamp, width: int, force: bool) -> None:
        """Open or continue the working table."""
        self.place, self.stamp, self.width = place, stamp, width
        self.database = connect(place.location)
        self.column = place.columns.vector or getattr(source, "vector_column", None) or "vector"
        self.work = f"{place.name}__partial"
        names = _table_names(self.database)
        if place.name in names and not force:
            raise OutputError("exists already", where=place.text, fix="choose another name, or pass --force")
        self.table = open_or_none(self.database, place.location, self.work)
        if self.table is not None:
            known = (self.table.schema.metadata or {}).get(STAMP_KEY.encode(), b"").decode()
            if known != stamp.to_json():
                if not force:
                    raise refuse_half_done(f"{place.location}#{self.work}")
                self.database.drop_table(self.work)
                self.table = None
        self.done = int(self.table.count_rows()) if self.table is not None else 0
        self.waiting: list[pa.Table] = []

    def write(self, batch: Batch, vectors: Array) -> None:
        """Add rows to the next commit."""
        self.waiting.append(stamped(batch, vectors, self.column, self.stamp))
        if sum(map(len, self.waiting)) >= COMMIT_ROWS:
            self._commit()

    def finish(self) -> None:
        """Commit the rest and give the table its name."""
        self._commit()
        if self.place.name in _table_names(self.database):
            self.database.drop_table(self.place.name)
        # embedded LanceDB cannot rename: a table is a folder, and one rename moves it whole
        root = Path(self.place.location)
        (root / f"{self.work}.lance").rename(root / f"{self.place.name}.lance")

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


def stamped(batch: Batch, vectors: Array, column: str, stamp: Stamp) -> pa.Table:
    """Return the rows of `batch` with other vectors in `column`, and whose space these are in."""
    width = int(vectors.shape[1])
    values = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(values, width)
    field = pa.field(column, pa.list_(pa.float32(), width))
    table = as_table(batch)
    if column in table.column_names:
        table = table.set_column(table.column_names.index(column), field, lists)
    else:
        table = table.append_column(field, lists)
    for name, value in ((MODEL_COLUMN, stamp.model), (MAP_COLUMN, stamp.map)):
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if key == b"huggingface"}
    return table.replace_schema_metadata({**kept, STAMP_KEY.encode(): stamp.to_json().encode()})


def open_source(place: Place) -> LanceSource:
    """Open a table for reading."""
    return LanceSource(place)


def open_sink(place: Place, source: Source, stamp: Stamp, *, width: int, force: bool) -> LanceSink:
    """Open a table for writing."""
    return LanceSink(place, source, stamp, width, force)


def connect(location: str) -> Any:
    """Connect to an embedded database, or say how to get LanceDB."""
    try:
        import lancedb
    except ImportError as error:
        raise MissingError(
            "LanceDB is not installed", where="lance", fix="pip install 'transship[lance]'"
        ) from error
    return lancedb.connect(location)


def open_table(place: Place) -> Any:
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


def _vector_column(schema: pa.Schema, place: Place) -> str:
    fixed = [
        field.name
        for field in schema
        if pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type)
    ]
    found = find_column(schema.names, place.columns.vector, VECTOR_NAMES, "vector", place.text)
    if found is None and len(fixed) == 1:
        found = fixed[0]
    if found not in fixed:
        raise DataError(
            "has no column of vectors of fixed width",
            where=place.text,
            fix=f"name it with --vector-column; there are: {', '.join(schema.names)}",
        )
    return str(found)
