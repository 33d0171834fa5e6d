"""Rows on their way into one file: safe up to the last note, so that a stopped run goes on there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from transship.atomic import atomic_file, check_target, write_json, write_text
from transship.errors import DataError, MissingError
from transship.types import Array
from transship.verbs.translate.stores.protocol import (
    RowBatch,
    Stamp,
    StorePlace,
    VectorSink,
    VectorSource,
    refuse_half_done,
    vanished,
)

# of one id as Python holds it in a list
ID_BYTES = 100


class OneFileSource(VectorSource):
    """A store that is one file, with its provenance beside it in `NAME.json`."""

    def __init__(self, place: StorePlace) -> None:
        """Look for the file and read its provenance."""
        self.place, self.path = place, Path(place.location)
        if not self.path.is_file():
            raise MissingError("there is no such file", where=place.text, fix="check the path")
        about = about_path(self.path)
        self.stamp = Stamp.from_json(about.read_text(encoding="utf-8") if about.is_file() else None)

    def fingerprint(self) -> str:
        """Return size, time and shape of the file."""
        status = self.path.stat()
        return f"{status.st_size}-{status.st_mtime_ns}-{self.rows}x{self.width}"

    def check_there(self, row: int) -> None:
        """Refuse to go on when the file is gone."""
        if not self.path.is_file():
            raise vanished(self.place.text, row, FileNotFoundError("the file was removed"))


class OneFileSink(VectorSink):
    """Writes rows into `.NAME.partial.npy`, a file of the final size, with a note of how many are safe."""

    def __init__(
        self, place: StorePlace, source: VectorSource, stamp: Stamp, width: int, force: bool
    ) -> None:
        """Open or continue the row file."""
        check_target(place.location, force=force)
        self.target, self.stamp, self.source, self.width = Path(place.location), stamp, source, width
        self.draft, self.note = (
            self.target.with_name(f".{self.target.name}.partial.{ending}") for ending in ("npy", "json")
        )
        known = _read_note(self.note)
        same = known is not None and known.get("note") == stamp.to_json()
        if known is not None and not same and not force:
            raise refuse_half_done(str(self.note))
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if known is not None and same and self.draft.is_file():
            self.done = int(known["done"])
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
        """Write provenance and ids, put the file into place, and remove the note."""
        write_text(about_path(self.target), self.stamp.to_json(), force=True)
        with atomic_file(self.target, force=True) as draft:
            self.assemble(draft, self.source.all_ids())
        self.draft.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def assemble(self, draft: Path, ids: Array | None) -> None:
        """Make the whole file under the name `draft`."""
        raise NotImplementedError

    def _keep(self) -> None:
        write_json(self.note, {"note": self.stamp.to_json(), "done": self.done}, force=True, sync=False)


def sweep(place: StorePlace) -> None:
    """Remove what a run had no time to remove after its last rename."""
    target = Path(place.location)
    for left in target.parent.glob(f".{target.name}.partial.*"):
        left.unlink()


def about_path(path: Path) -> Path:
    """Return where the provenance of a file lies."""
    return path.with_name(f"{path.name}.json")


def _read_note(path: Path) -> dict[str, Any] | None:
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        return note if isinstance(note, dict) else None
    except (OSError, ValueError):
        return None


def unreadable(what: str, place: StorePlace) -> DataError:
    """Return the error for a file of another kind, or cut short."""
    return DataError(f"is not a readable {what}", where=place.text, fix="write it again")
