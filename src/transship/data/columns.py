"""Tables of numbers side by side: which of their columns are values, and what a missing one is."""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transship.data.labels import Options, find_column, first_null
from transship.data.tables import DataTable
from transship.errors import DataError

_log = logging.getLogger(__name__)
# how tables of text write a number that is missing
_NO_NUMBER = ("", "?", "na", "n/a", "nan", "null", "none")


def wide_kind(table: DataTable, options: Options) -> Literal["series", "array"] | None:
    """Return what a table is of which every column beside labels, ids and splits holds numbers, if it is one.

    Columns that are numbered one after the other, such as t1 … t251, are a series.
    """
    if len(table.names) < 3 or not any(_reads_as_number(table.column(name)) for name in table.names[:3]):
        return None
    used = numeric_columns(table, options)
    beside = len(_beside(table, options))
    if len(used) < 3 or len(used) + beside < len(table.names):
        return None
    ends = [re.fullmatch(r"(\D*)(\d+)", name) for name in used]
    numbers = [int(end[2]) for end in ends if end is not None]
    stems = {end[1] for end in ends if end is not None}
    if len(numbers) < len(used) or len(stems) > 1 or np.any(np.diff(numbers) != 1):
        return "array"
    if table.headed:  # otherwise the guess has been said
        _log.warning("%s: the columns %s to %s are read as a series", table.source, used[0], used[-1])
    return "series"


def numeric_columns(table: DataTable, options: Options) -> list[str]:
    """Return the columns of numbers, without labels, ids and splits; refuse a table without any."""
    where, beside = table.source, _beside(table, options)
    used = [name for name in table.names if name not in beside and _reads_as_number(table.column(name))]
    if not used:
        raise DataError(
            f"no column holds numbers or lists of numbers (the columns are {', '.join(table.names[:12])})",
            where=where,
            fix="name a column with --column (column= in Python)",
        )
    return used


def _beside(table: DataTable, options: Options) -> set[str]:
    """Return the columns of labels, their names, ids and splits."""
    names, where = table.names, table.source
    label = None if options.label is False else find_column("label", names, options.label, where=where)
    columns = {
        label,
        find_column("label_name", names, None, where=where),
        find_column("id", names, options.id, where=where),
        find_column("split", names, options.split_column, where=where),
    }
    return {name for name in columns if name is not None}


def finite_column(table: DataTable, name: str, *, gaps: bool) -> NDArray[np.float64]:
    """Return a column of finite numbers [rows]; with `gaps`, one that is missing is NaN."""
    import pyarrow

    values, where = _without_words(table.column(name)), f"{table.source}, column '{name}'"
    if values.null_count and not gaps:
        raise DataError(f"row {first_null(values) + 1} has no value", where=where, fix="fill in or drop it")
    numbers = np.asarray(values.cast(pyarrow.float64()).to_numpy())
    wrong = np.flatnonzero(np.isinf(numbers) if gaps else ~np.isfinite(numbers))
    if len(wrong):
        raise DataError(
            f"row {wrong[0] + 1} is NaN or infinite", where=where, fix="fill in or drop those rows"
        )
    return numbers


def _reads_as_number(column: Any) -> bool:
    import pyarrow
    import pyarrow.types as types

    if types.is_integer(column.type) or types.is_floating(column.type):
        return True
    if not types.is_string(column.type):
        return False
    try:
        return bool(_without_words(column).cast(pyarrow.float64()).null_count < len(column))
    except pyarrow.ArrowInvalid:
        return False


def _without_words(column: Any) -> Any:
    """Return a column with nothing where a table of text has a word for a missing number."""
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.types as types

    if not types.is_string(column.type):
        return column
    missing = compute.is_in(compute.utf8_lower(column), value_set=pyarrow.array(_NO_NUMBER))
    return compute.if_else(missing, None, column)
