"""How far a collection is, kept in a folder so that a killed one goes on.

Work comes in units of a few batches, numbered over all inputs. A state says which units its sums hold, with a
digest of their inputs. Every process saves states of its own; a later run, of however many processes, reads
all that it finds and does the units that are in none of them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from transship import parallel
from transship.activations.loading import values_of
from transship.errors import OptionError
from transship.geometry import Moments, load_moments, save_moments


class Sums(Protocol):
    """What is summed up: Moments by name, of which rows may still wait for their product."""

    @property
    def moments(self) -> dict[str, Moments]:
        """Name → Moments."""

    def flush(self) -> None:
        """Add what waits."""


@dataclass
class Found:
    """A saved state: where it is, and which units its sums hold."""

    name: str
    about: dict[str, Any]
    units: dict[int, str]


@dataclass(eq=False)
class SavedState:
    """Saved states in a folder: each whole in a folder of its own, renamed into place.

    Attributes:
        folder: where.
        sums: what is saved.
        about: what makes two collections the same.
        every: batches between two saved states.
        covered: unit → digest, of all units that were done before, by whichever process.
    """

    folder: Path
    sums: Sums
    about: dict[str, Any]
    every: int
    covered: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise OptionError(f"save every {self.every} batches", where="save_every", fix="give 1 or more")
        self._own: dict[int, str] = {}
        self._waiting = 0
        self._places: list[Path] = []

    def resume(self) -> None:
        """Read the states that are there, each in one of the processes that see it."""
        views = parallel.gather({saved.name: saved for saved in self._found()})
        wanted = json.loads(json.dumps(self.about))
        every = {name: saved for view in views for name, saved in view.items()}
        for saved in every.values():
            if saved.about != wanted:
                raise OptionError(
                    "the folder holds the state of another collection",
                    where=str(self.folder),
                    fix="choose another folder, or the same models and options",
                )
        # a kill between a state and the removal of the one before it leaves both: the larger one counts
        for turn, saved in enumerate(sorted(every.values(), key=lambda one: (-len(one.units), one.name))):
            if self.covered.keys() & saved.units.keys():
                continue
            self.covered |= saved.units
            seers = [rank for rank, view in enumerate(views) if saved.name in view]
            if seers[turn % len(seers)] == parallel.rank():
                self._take(saved)

    def _take(self, one: Found) -> None:
        for name, moments in load_moments(self.folder / one.name / "moments.safetensors").items():
            if name in self.sums.moments:
                mine = self.sums.moments[name]
                mine += moments.to(mine.sum_a.device)
            else:
                self.sums.moments[name] = moments
        self._own |= one.units
        self._places.append(self.folder / one.name)

    def _found(self) -> list[Found]:
        states = []
        for place in sorted(self.folder.glob("state-*")) if self.folder.is_dir() else []:
            # a kill while a replaced state is removed leaves a folder without its description
            if place.suffix != ".part" and (place / "state.json").is_file():
                read = json.loads((place / "state.json").read_text(encoding="utf-8"))
                units = {int(unit): digest for unit, digest in read.get("units", {}).items()}
                states.append(Found(place.name, read["about"], units))
        return states

    def covers(self, unit: int, batches: Sequence[Sequence[tuple[int, Any]]]) -> bool:
        """Return whether a unit was saved; refuse other inputs than those that it was made of."""
        if unit in self.covered and self.covered[unit] != digest_of(batches):
            raise _other_inputs()
        return unit in self.covered

    def add(self, unit: int, batches: Sequence[Sequence[tuple[int, Any]]]) -> None:
        """Count a unit as done, and save when enough batches are."""
        self._own[unit] = digest_of(batches)
        self._waiting += len(batches)
        if self._waiting >= self.every:
            self.save()

    def finish(self, units: int) -> None:
        """Save what waits; refuse fewer inputs than the saved units were made of."""
        if any(unit >= units for unit in self.covered):
            raise _other_inputs()
        if self._waiting:
            self.save()

    def save(self) -> None:
        """Write a state of this process's units, and remove those that it replaces."""
        self.sums.flush()
        self._waiting = 0
        if not self._own:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / f"state-{parallel.rank():03d}-{len(self._own):09d}-{os.getpid()}"
        if place.exists():
            return
        draft = place.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_moments(draft / "moments.safetensors", self.sums.moments)
        described = {"about": self.about, "units": self._own}
        (draft / "state.json").write_text(json.dumps(described), encoding="utf-8")
        draft.rename(place)
        for old in (*self._places, *self.folder.glob(f"state-{parallel.rank():03d}-*.part")):
            shutil.rmtree(old, ignore_errors=True)
        self._places = [place]


def _other_inputs() -> OptionError:
    return OptionError(
        "the saved state is of other inputs", where="resume", fix="give the same inputs, or another folder"
    )


def digest_of(batches: Iterable[Iterable[tuple[int, Any]]]) -> str:
    """Return a digest of numbered inputs."""
    digest = hashlib.blake2b(digest_size=16)
    for number, item in chain.from_iterable(batches):
        digest.update(str(number).encode() + b"\0" + _bytes(item))
    return digest.hexdigest()


def signature(model: nn.Module) -> str:
    """Return a digest of some numbers of every weight: enough to tell a fine-tune from its base."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in values_of(model):
        flat = parameter.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // 64)][:64].double().cpu()
        digest.update(name.encode() + np.asarray(some).tobytes())
    return digest.hexdigest()


def _bytes(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass") + b"\0"
    if isinstance(item, tuple | list):
        return b"".join(_bytes(part) for part in item)
    if hasattr(item, "tobytes"):
        return bytes(item.tobytes())
    return np.asarray(item).tobytes()
