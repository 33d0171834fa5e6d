"""Text: one per line, or a column of a table; pairs of texts where a table has two."""

from __future__ import annotations

from typing import Any

from transship.data.columns import find_column, find_pair, need_column
from transship.data.dataset import Dataset
from transship.data.labels import Options, assemble, first_null
from transship.data.rows import ArrowRows, PairRows
from transship.data.tables import Table
from transship.errors import DataError


def text_of_table(table: Table, options: Options, name: str) -> Dataset:
    """Return the texts of a table, or the pairs when it has two text columns and one is not named alone."""
    first, second = _columns(table, options)
    rows = ArrowRows(_strings(table, first))
    if second is None:
        return assemble(table, rows, "text", options, used=[first], name=name)
    pairs = PairRows(rows, ArrowRows(_strings(table, second)))
    return assemble(table, pairs, "pair", options, used=[first, second], name=name)


def _columns(table: Table, options: Options) -> tuple[str, str | None]:
    where = table.source
    if options.column is None and options.pair is None:
        pair = find_pair(table.names)
        if pair is not None:
            return pair
    if options.pair:
        second = find_column("text", table.names, options.pair, where=where)
        rest = [column for column in table.names if column != second]
        if options.column is None:
            found = find_pair(table.names)
            if found is not None and found[1] == second:
                return found[0], second
        return need_column("text", rest, options.column, where=where), second
    if options.column is None and options.pair is False:
        found = find_pair(table.names)
        if found is not None:
            return found[0], None
    return need_column("text", table.names, options.column, where=where), None


def _strings(table: Table, column: str) -> Any:
    """Return a column of text, or refuse it by its first row without one."""
    import pyarrow
    import pyarrow.types as types

    values = table.column(column)
    where = f"{table.source}, column '{column}'"
    if values.null_count:
        raise DataError(
            f"row {first_null(values) + 1} has no text ({values.null_count} such rows)",
            where=where,
            fix="fill in or drop those rows",
        )
    if types.is_dictionary(values.type):
        values = pyarrow.chunked_array([chunk.dictionary_decode() for chunk in values.chunks])
    if not (types.is_string(values.type) or types.is_large_string(values.type)):
        raise DataError(
            f"it holds {values.type} and no text", where=where, fix="name the text column with column="
        )
    return values
