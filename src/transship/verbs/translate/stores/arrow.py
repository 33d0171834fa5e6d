"""Rows as Arrow tables, for the stores that have columns: Parquet and LanceDB."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from transship.errors import DataError
from transship.types import Array
from transship.verbs.translate.stores.protocol import (
    MAP_COLUMN,
    MODEL_COLUMN,
    STAMP_KEY,
    VECTOR_NAMES,
    RowBatch,
    Stamp,
    StorePlace,
    find_column,
)


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
