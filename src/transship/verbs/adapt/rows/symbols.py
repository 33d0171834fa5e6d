"""Symbols that come as text: letters, or words between spaces, and the ids that they get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transship.errors import DataError

FILL = ""  # the symbol behind rows that are shorter than the longest


@dataclass(frozen=True)
class Alphabet:
    """The symbols of the training rows in the order of their ids.

    Attributes:
        names: of the symbols; the last one is `FILL` where rows differ in length.
        words: whether a symbol is a word, because rows have spaces in them, and not a letter.
    """

    names: tuple[str, ...]
    words: bool = False

    @classmethod
    def of(cls, texts: Iterable[Any]) -> Alphabet:
        plain = [str(text) for text in texts]
        words = any(len(text.split()) > 1 for text in plain)
        rows = [_symbols(text, words) for text in plain]
        names = sorted({symbol for row in rows for symbol in row})
        return cls((*names, *([FILL] if len({len(row) for row in rows}) > 1 else [])), words)

    def ids(self, texts: Any, length: int | None = None) -> NDArray[np.int64]:
        """Return the ids [rows, length], filled up to `length`, or to the longest row where it is None."""
        if not is_text(texts):
            raise DataError("inputs are no text, and the model reads symbols", where="X", fix="give text")
        rows = [_symbols(str(text), self.words) for text in texts]
        codes = {name: place for place, name in enumerate(self.names)}
        most = max(map(len, rows)) if length is None else length
        return np.array([self._coded(number, row, codes, most) for number, row in enumerate(rows, 1)])

    def _coded(self, number: int, row: Sequence[str], codes: Mapping[str, int], length: int) -> list[int]:
        unknown = next((symbol for symbol in row if symbol not in codes), None)
        if unknown is not None:
            what = f"row {number} has the symbol {unknown!r}, which did not occur in training"
            raise DataError(what, where="X", fix="leave such rows out, or train on data that has them")
        short = length - len(row)
        if short < 0 or (short and FILL not in codes):
            what = f"row {number} has {len(row)} symbols and the model reads {length}"
            raise DataError(what, where="X", fix="cut longer rows, and train on rows of several lengths")
        return [codes[symbol] for symbol in (*row, *[FILL] * short)]


def is_text(values: Any) -> bool:
    """Return whether the rows are text."""
    return len(values) > 0 and isinstance(values[0], str)


def is_one_hot(array: NDArray[Any], most: int) -> bool:
    """Return whether a series [rows, channels, length] says which of up to `most` symbols stands where."""
    if array.ndim != 3 or not 2 <= array.shape[1] <= most or not array.size:
        return False
    return bool(((array == 0) | (array == 1)).all() and (array.sum(1) == 1).all())


def _symbols(text: str, words: bool) -> Sequence[str]:
    return text.split() if words else text
