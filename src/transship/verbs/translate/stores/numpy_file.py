"""npy: one array file, its ids beside it in `NAME.ids.npy`, its provenance in `NAME.json`.

Rows on their way lie in `.NAME.partial.npy`, a file of the final size, with a note of how many are safe.
Other stores of one file make it of that array.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transship.atomic import atomic_files, check_target, recover, remove, write_json
from transship.errors import DataError, MissingError, TransshipError
from transship.targets import check_entry
from transship.types import Array
from transship.verbs.translate.stores.index import ArrayIndex
from transship.verbs.translate.stores.protocol import (
    RowBatch,
    Stamp,
    Store,
    StorePlace,
    VectorSink,
    VectorSource,
    goes_on,
    vanished,
)

# of one id as Python holds it in a list
ID_BYTES = 100


class OneFileSource(VectorSource):
    """A store that is one file, with its provenance beside it in `NAME.json`."""

    def __init__(self, place: StorePlace) -> None:
        """Look for the file and read its provenance."""
        self.place, self.path = place, Path(place.location)
        recover(self.path)  # a writer killed between two renames
        if not self.path.is_file():
            raise MissingError("there is no such file", where=place.text, fix="check the path")
        about = about_path(self.path)
        self.stamp = Stamp.from_json(about.read_text(encoding="utf-8") if about.is_file() else None)

    def fingerprint(self) -> str:
        """Return size, time and shape of the file."""
        status = self.path.stat()
        return f"{status.st_size}-{status.st_mtime_ns}-{self.rows}x{self.width}"

    def batches(self, size: int, start: int = 0) -> Iterator[RowBatch]:
        """Yield rows from `start` on; refuse to go on when the file is gone."""
        for first in range(start, self.rows, size):
            if not self.path.is_file():
                raise vanished(self.place.text, first, FileNotFoundError("the file was removed"))
            yield self.read(first, min(first + size, self.rows))

    def read(self, first: int, stop: int) -> RowBatch:
        raise NotImplementedError


def steady(kind: Callable[[StorePlace], VectorSource]) -> Callable[[StorePlace], VectorSource]:
    """Return what opens a file, its ids and its provenance as they belong together.

    A writer that puts new ones in place meanwhile makes this look again.
    """

    def opened(place: StorePlace) -> VectorSource:
        while True:
            before = _identities(Path(place.location))
            try:
                source = kind(place)
            except TransshipError:
                if before == _identities(Path(place.location)):
                    raise
                continue
            if before == _identities(Path(place.location)):
                return source
            source.close()

    return opened


def _identities(path: Path) -> list[tuple[int, int] | None]:
    """Return what changes when one of the files that belong together is replaced."""
    identities: list[tuple[int, int] | None] = []
    for file in (path, about_path(path), ids_path(path)):
        try:
            status = file.stat()
            identities.append((status.st_ino, status.st_mtime_ns))
        except OSError:
            identities.append(None)
    return identities


class NumpySource(OneFileSource):
    """Rows of one `.npy` file, read through a memory map."""

    def __init__(self, place: StorePlace) -> None:
        """Map the file and read the ids."""
        super().__init__(place)
        try:
            self.array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # numpy raises whatever it meets in a broken header
            raise unreadable(".npy file", place) from error
        if self.array.ndim != 2 or not np.issubdtype(self.array.dtype, np.floating):
            raise DataError(
                f"holds {self.array.dtype} of shape {self.array.shape}",
                where=place.text,
                fix="give floats of shape [rows, width]",
            )
        self.rows, self.width = map(int, self.array.shape)
        self.ids = _read_ids(ids_path(self.path), self.rows)

    def read(self, first: int, stop: int) -> RowBatch:
        ids = np.arange(first, stop) if self.ids is None else self.ids[first:stop]
        return RowBatch(ids, np.asarray(self.array[first:stop]))

    def all_ids(self) -> Array | None:
        return self.ids

    def close(self) -> None:
        del self.array


class OneFileSink(VectorSink):
    """Writes rows into the partial file, and makes the target of it when all are there."""

    def __init__(
        self, place: StorePlace, source: VectorSource, stamp: Stamp, width: int, force: bool
    ) -> None:
        """Open or continue the partial file."""
        self.target = Path(place.location)
        check_target(self.target, force=force, kind="file", reads={"IN": source.place.location})
        for beside in (about_path(self.target), ids_path(self.target)):
            check_entry(beside, str(beside), force=force, kind="file")
        self.stamp, self.source, self.width = stamp, source, width
        self.draft, self.note = _partial(self.target)
        left = _read_note(self.note)
        same = goes_on(left.get("note"), stamp.to_json(), str(self.note), force=force)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if same and self.draft.is_file():
            self.done = int(left["done"])
            self.array = np.lib.format.open_memmap(self.draft, "r+")
        else:
            self.done = 0
            self.array = np.lib.format.open_memmap(self.draft, "w+", np.float32, (source.rows, width))
            self._keep()

    def write(self, batch: RowBatch, vectors: Array) -> None:
        """Write rows after those that are safe, then note them; ids come from the source at the end."""
        self.array[self.done : self.done + len(vectors)] = vectors
        self.array.flush()
        self.done += len(vectors)
        self._keep()

    def finish(self) -> None:
        """Put the file, its ids and its provenance in place together, and remove the note."""
        about, ids = about_path(self.target), ids_path(self.target)
        with atomic_files(self.target, about.name, ids.name, force=True) as place:
            (place / about.name).write_text(self.stamp.to_json(), encoding="utf-8")
            self.assemble(place / self.target.name, self.source.all_ids())
        _remove_partial(self.target)

    def assemble(self, draft: Path, ids: Array | None) -> None:
        """Make the whole file under the name `draft`, and what belongs beside it."""
        raise NotImplementedError

    def _keep(self) -> None:
        write_json(self.note, {"note": self.stamp.to_json(), "done": self.done}, force=True, sync=False)


class NumpySink(OneFileSink):
    """Writes `NAME.npy`, `NAME.ids.npy` where the source has ids, and `NAME.json`."""

    def assemble(self, draft: Path, ids: Array | None) -> None:
        """Write the ids; the rows are whole already."""
        if ids is not None:
            np.save(draft.with_name(ids_path(self.target).name), ids, allow_pickle=False)
        os.replace(self.draft, draft)


def sweep(place: StorePlace) -> None:
    """Remove what a run had no time to remove after its last rename."""
    _remove_partial(Path(place.location))


def _partial(target: Path) -> tuple[Path, Path]:
    """Return where rows on their way lie, and the note of how many are safe."""
    rows, note = (target.with_name(f".{target.name}.partial.{ending}") for ending in ("npy", "json"))
    return rows, note


def _remove_partial(target: Path) -> None:
    for left in _partial(target):
        remove(left)


def about_path(path: Path) -> Path:
    """Return where the provenance of a file lies."""
    return path.with_name(f"{path.name}.json")


def ids_path(path: Path) -> Path:
    """Return where the ids of an array file lie."""
    return path.with_name(f"{path.name.removesuffix('.npy')}.ids.npy")


def unreadable(what: str, place: StorePlace) -> DataError:
    """Return the error for a file of another kind, or cut short."""
    return DataError(f"is not a readable {what}", where=place.text, fix="write it again")


def _read_note(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        return note if isinstance(note, dict) else {}
    except (OSError, ValueError):
        return {}


def _read_ids(path: Path, rows: int) -> Array | None:
    if not path.is_file():
        return None
    try:
        ids: Array = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises whatever it meets in a broken header
        raise DataError(
            "is not a readable .npy file", where=str(path), fix="write it again, without objects"
        ) from error
    if ids.shape != (rows,):
        raise DataError(f"holds {len(ids)} ids for {rows} rows", where=str(path), fix="give one id per row")
    return ids


STORE = Store(
    steady(NumpySource),
    NumpySink,
    index=lambda place: ArrayIndex.of(steady(NumpySource)(place)),
    held_bytes=lambda rows, width: rows * ID_BYTES,  # the ids are written at the end
    sweep=sweep,
)
