"""npy: one array file, its ids beside it in `NAME.ids.npy`, its provenance in `NAME.json`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transship.atomic import atomic_file
from transship.errors import DataError
from transship.types import Array
from transship.verbs.translate.stores.array_index import ArrayIndex
from transship.verbs.translate.stores.protocol import RowBatch, StorePlace
from transship.verbs.translate.stores.row_file import (
    ID_BYTES,
    OneFileSink,
    OneFileSource,
    sweep,
    unreadable,
)

__all__ = ["held_bytes", "open_index", "open_sink", "open_source", "sweep"]


class NumpySource(OneFileSource):
    """Rows of one `.npy` file, read through a memory map."""

    def __init__(self, place: StorePlace) -> None:
        """Map the file and read the ids."""
        super().__init__(place)
        try:
            self.array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise unreadable(".npy file", place) from error
        if self.array.ndim != 2 or not np.issubdtype(self.array.dtype, np.floating):
            raise DataError(
                f"holds {self.array.dtype} of shape {self.array.shape}",
                where=place.text,
                fix="give floats of shape [rows, width]",
            )
        self.rows, self.width = map(int, self.array.shape)
        self.ids = _read_ids(ids_path(self.path), self.rows)

    def batches(self, size: int, start: int = 0) -> Iterator[RowBatch]:
        """Yield rows from `start` on."""
        for first in range(start, self.rows, size):
            self.check_there(first)
            part = slice(first, min(first + size, self.rows))
            ids = np.arange(part.start, part.stop) if self.ids is None else self.ids[part]
            yield RowBatch(ids, np.asarray(self.array[part]))

    def all_ids(self) -> Array | None:
        """Return the ids file's content."""
        return self.ids

    def close(self) -> None:
        """Drop the map."""
        del self.array


class NumpySink(OneFileSink):
    """Writes `NAME.npy`, `NAME.ids.npy` where the source has ids, and `NAME.json`."""

    def assemble(self, draft: Path, ids: Array | None) -> None:
        """Write the ids; the rows are whole already."""
        if ids is not None:
            with atomic_file(ids_path(self.target), force=True) as beside, beside.open("wb") as file:
                np.save(file, ids, allow_pickle=False)
        os.replace(self.draft, draft)


open_source, open_sink = NumpySource, NumpySink


def open_index(place: StorePlace) -> ArrayIndex:
    """Return the rows as an index in memory."""
    return ArrayIndex.of(NumpySource(place))


def held_bytes(rows: int, width: int) -> int:
    """Return the bytes of the ids, which are written at the end."""
    return rows * ID_BYTES


def ids_path(path: Path) -> Path:
    """Return where the ids of an array file lie."""
    return path.with_name(f"{path.name.removesuffix('.npy')}.ids.npy")


def _read_ids(path: Path, rows: int) -> Array | None:
    if not path.is_file():
        return None
    try:
        ids: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(
            "is not a readable .npy file", where=str(path), fix="write it again, without objects"
        ) from error
    if ids.shape != (rows,):
        raise DataError(f"holds {len(ids)} ids for {rows} rows", where=str(path), fix="give one id per row")
    return ids
