"""npy: one array file, its ids beside it in `NAME.ids.npy`, its provenance in `NAME.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transship.errors import DataError, MissingError, OutputError
from transship.verbs.translate.stores.protocol import (
    Array,
    Batch,
    Place,
    Source,
    Stamp,
    gone,
    refuse_half_done,
)


class NumpySource:
    """Rows of one `.npy` file, read through a memory map."""

    def __init__(self, place: Place) -> None:
        """Map the file and read the ids."""
        self.place, self.path = place, Path(place.location)
        if not self.path.is_file():
            raise MissingError("there is no such file", where=place.text, fix="check the path")
        try:
            self.array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError("is not a readable .npy file", where=place.text, fix="write it again") from error
        if self.array.ndim != 2 or not np.issubdtype(self.array.dtype, np.floating):
            raise DataError(
                f"holds {self.array.dtype} of shape {self.array.shape}",
                where=place.text,
                fix="give floats of shape [rows, width]",
            )
        self.rows, self.width = map(int, self.array.shape)
        self.ids = _read_ids(ids_path(self.path), self.rows)
        self.stamp = Stamp.from_json(_text(about_path(self.path)))

    def fingerprint(self) -> str:
        """Return size, time and shape of the file."""
        status = self.path.stat()
        return f"{status.st_size}-{status.st_mtime_ns}-{self.rows}x{self.width}"

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield rows from `start` on."""
        for first in range(start, self.rows, size):
            if not self.path.is_file():
                raise gone(self.place.text, first, FileNotFoundError("the file was removed"))
            part = slice(first, min(first + size, self.rows))
            ids = np.arange(part.start, part.stop) if self.ids is None else self.ids[part]
            yield Batch(ids, np.asarray(self.array[part]))

    def close(self) -> None:
        """Drop the map."""
        del self.array


class RowFile:
    """Rows written into a file of the final size, with a note of how many are safe."""

    def __init__(self, target: Path, rows: int, width: int, note: str, force: bool) -> None:
        """Open or continue `.TARGET.partial.npy`."""
        self.path = target.with_name(f".{target.name}.partial.npy")
        self.state = target.with_name(f".{target.name}.partial.json")
        known = _json(self.state)
        if known is not None and known.get("note") != note and not force:
            raise refuse_half_done(str(self.state))
        usable = known is not None and known.get("note") == note and self.path.is_file()
        self.note, self.done = note, int(known["done"]) if usable and known is not None else 0
        target.parent.mkdir(parents=True, exist_ok=True)
        if not usable:
            self.array = np.lib.format.open_memmap(self.path, "w+", np.float32, (rows, width))
            self._keep()
        else:
            self.array = np.lib.format.open_memmap(self.path, "r+")

    def write(self, vectors: Array) -> None:
        """Write rows after those that are safe, then note them."""
        self.array[self.done : self.done + len(vectors)] = vectors
        self.array.flush()
        self.done += len(vectors)
        self._keep()

    def remove(self) -> None:
        """Remove the file and the note."""
        self.path.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def _keep(self) -> None:
        draft = self.state.with_suffix(".draft")
        draft.write_text(json.dumps({"note": self.note, "done": self.done}), encoding="utf-8")
        os.replace(draft, self.state)


class NumpySink:
    """Writes `NAME.npy`, `NAME.ids.npy` where the source has ids, and `NAME.json`."""

    def __init__(self, place: Place, source: Source, stamp: Stamp, width: int, force: bool) -> None:
        """Open or continue the row file."""
        self.target, self.stamp, self.source = Path(place.location), stamp, source
        if self.target.exists() and not force:
            raise OutputError("exists already", where=place.text, fix="choose another name, or pass --force")
        self.rows = RowFile(self.target, source.rows, width, stamp.to_json(), force)

    @property
    def done(self) -> int:
        """Rows that are safe."""
        return self.rows.done

    def write(self, batch: Batch, vectors: Array) -> None:
        """Add rows; ids are written at the end, from the source."""
        self.rows.write(vectors)

    def finish(self) -> None:
        """Write ids and provenance, then rename the rows into place."""
        ids = source_ids(self.source)
        if ids is not None:
            draft = ids_path(self.target).with_suffix(".draft")
            with draft.open("wb") as file:
                np.save(file, ids, allow_pickle=False)
            os.replace(draft, ids_path(self.target))
        about_path(self.target).write_text(self.stamp.to_json(), encoding="utf-8")
        os.replace(self.rows.path, self.target)
        self.rows.remove()

    def close(self) -> None:
        """Nothing to do: what is noted is safe."""


def open_source(place: Place) -> NumpySource:
    """Open a file for reading."""
    return NumpySource(place)


def open_sink(place: Place, source: Source, stamp: Stamp, *, width: int, force: bool) -> NumpySink:
    """Open a file for writing."""
    return NumpySink(place, source, stamp, width, force)


def source_ids(source: Source) -> Array | None:
    """Return the ids of all rows of a source, or None when they are row numbers."""
    if isinstance(source, NumpySource):
        return source.ids
    found: list[object] = []
    for batch in source.batches(8192):
        found.extend(batch.ids)
    ids = np.asarray(found)
    return None if np.array_equal(ids, np.arange(len(ids))) else ids


def ids_path(path: Path) -> Path:
    """Return where the ids of an array file lie."""
    return path.with_name(f"{path.name.removesuffix('.npy')}.ids.npy")


def about_path(path: Path) -> Path:
    """Return where the provenance of a file lies."""
    return path.with_name(f"{path.name}.json")


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


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None
