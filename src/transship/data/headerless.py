"""Tables of numbers without a header, as the UCR archive has its series."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

_log = logging.getLogger(__name__)


def has_no_header(cells: Sequence[str]) -> bool:
    """Return whether a first line holds numbers, and not those of the columns, as pandas writes them."""
    values = [_as_number(cell) for cell in cells]
    if len(values) < 3 or None in values:
        return False
    return values not in (list(range(len(values))), list(range(1, len(values) + 1)))


def _as_number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def column_names(file: Path, rows: Sequence[tuple[int, list[str]]]) -> list[str]:
    """Return names for the columns of a table without a header, as the UCR archive has its series.

    A first column of whole numbers is the label where other columns hold fractions; the rest is a series. The
    labels are written as whole numbers, also those that came as 1.0000000e+00.
    """
    first, width = [_as_number(row[0]) for _, row in rows], len(rows[0][1])
    fractions = any((_as_number(cell) or 0.0) % 1 for _, row in rows[:50] for cell in row[1:])
    whole = all(value is not None and value % 1 == 0 for value in first)
    guess = f"the {width} columns are read as a series"
    if whole and fractions:
        guess = f"column 1 is read as the label, columns 2 to {width} as a series"
        for value, (_, row) in zip(first, rows, strict=True):
            row[0] = str(int(value or 0))
    _log.warning("%s has no header: %s of %d values", file, guess, width - (whole and fractions))
    return [*(["label"] if whole and fractions else []), *(f"t{n}" for n in range(1, width + 1))][:width]
