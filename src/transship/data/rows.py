"""Sequences that stay where they are until a row is asked for, and the hashes of their content."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from transship.numerics import chunks


class LazyRows(Sequence[Any]):
    """A sequence that makes row `i` when it is indexed; slices are views."""

    @abstractmethod
    def _row(self, index: int) -> Any: ...

    def raw(self, index: int) -> bytes:
        """Return the bytes that stand for row `index` in a hash."""
        return encode(self._row(index))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return one row, or a view of several."""
        if isinstance(index, slice):
            return ChosenRows(self, np.arange(len(self))[index])
        position = int(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self._row(position % len(self))


class ChosenRows(LazyRows):
    """Chosen rows of another sequence; a choice of a choice refers to the first sequence."""

    def __init__(self, base: Sequence[Any], index: NDArray[np.int64]) -> None:
        self.base: Sequence[Any] = base.base if isinstance(base, ChosenRows) else base
        self.chosen: NDArray[np.int64] = base.chosen[index] if isinstance(base, ChosenRows) else index

    def __len__(self) -> int:
        return len(self.chosen)

    def _row(self, index: int) -> Any:
        return self.base[int(self.chosen[index])]

    def raw(self, index: int) -> bytes:
        position = int(self.chosen[index])
        return self.base.raw(position) if isinstance(self.base, LazyRows) else encode(self.base[position])


class ArrowRows(LazyRows):
    """A pyarrow column, turned into Python objects row by row."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def _row(self, index: int) -> Any:
        return self.column[index].as_py()


class PairRows(LazyRows):
    """Two sequences side by side."""

    def __init__(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first)

    def _row(self, index: int) -> Any:
        return self.first[index], self.second[index]


class ParquetRows(LazyRows):
    """One column of Parquet files; a row group is read when one of its rows is asked for, two are kept."""

    kept_groups = 2

    def __init__(self, files: Sequence[Any], column: str) -> None:
        self.column = column
        self._files = list(files)
        self._groups = [
            (part, group) for part, file in enumerate(files) for group in range(file.num_row_groups)
        ]
        sizes = [files[part].metadata.row_group(group).num_rows for part, group in self._groups]
        self._ends = np.cumsum(sizes)
        self._cache: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def _row(self, index: int) -> Any:
        group = int(np.searchsorted(self._ends, index, side="right"))
        start = int(self._ends[group - 1]) if group else 0
        return self._read(group)[index - start].as_py()

    def _read(self, number: int) -> Any:
        if number not in self._cache:
            part, group = self._groups[number]
            table = self._files[part].read_row_group(group, columns=[self.column])
            self._cache[number] = table.column(self.column)
            while len(self._cache) > self.kept_groups:
                self._cache.popitem(last=False)
        self._cache.move_to_end(number)
        return self._cache[number]


def encode(value: Any) -> bytes:
    """Return bytes that differ when values differ, with their type in front."""
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, np.ndarray):
        return f"a{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, tuple):
        parts = [encode(part) for part in value]
        return b"t" + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # a PIL image made in memory
        return f"i{value.mode}{value.size}".encode() + bytes(value.tobytes())
    return b"r" + repr(value).encode()


def canonical(column: NDArray[Any]) -> NDArray[Any] | list[Any]:
    """Return a column in one form per content: equal strings hash equally whatever numpy's width for them."""
    return [str(value) for value in column] if column.dtype.kind in "OUS" else column


def row_digest(rows: Sequence[Any] | NDArray[Any], index: int) -> str:
    """Return the hash of one row's content."""
    raw = rows.raw(index) if isinstance(rows, LazyRows) else encode(rows[index])
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def hash_rows(digest: Any, rows: Sequence[Any] | NDArray[Any]) -> None:
    """Add all rows to `digest`, each with its length in front, in memory that does not grow with them."""
    if isinstance(rows, np.ndarray):
        digest.update(f"a{rows.dtype.str}{rows.shape}".encode())
        width = max(1, int(np.prod(rows.shape[1:])) * rows.dtype.itemsize)
        for part in chunks(len(rows), max(1, (1 << 24) // width)):
            digest.update(np.ascontiguousarray(rows[part]))
        return
    for index in range(len(rows)):
        raw = rows.raw(index) if isinstance(rows, LazyRows) else encode(rows[index])
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
