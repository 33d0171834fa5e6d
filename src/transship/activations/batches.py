"""Inputs in batches, and the one loop over them for all statistics.

Batches are of similar length, in an order that depends on the inputs only. Processes share the loop, a killed
run goes on, and sums are over all. Batches are dealt out in units of a few. The rows of a unit are multiplied
together, whoever takes it, so that sums of one process and of several differ by the order of float64
additions alone.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from transship import parallel
from transship.activations.loading import preprocessors, values_of
from transship.errors import OptionError
from transship.geometry import Moments, load_moments, save_moments
from transship.geometry.moments import COMPARED_ROWS


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
        for turn, saved in enumerate(
            sorted(every.values(), key=lambda saved: (-len(saved.units), saved.name))
        ):
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


Numbered = list[tuple[int, Any]]
# Inputs that are read ahead and sorted by length, so that batches have little padding.
WINDOW = 4096


@dataclass(eq=False)
class Batches:
    """Inputs with their numbers, in batches of similar length; the order depends on the inputs only.

    Attributes:
        inputs: any iterable; it is read once, a window at a time.
        size: inputs per batch.
        length: a measure of an input's work.
        first: the number of the first input.
    """

    inputs: Iterable[Any]
    size: int
    length: Callable[[Any], int]
    first: int = 0
    window: int = field(default=WINDOW)

    def __len__(self) -> int:
        """Return the number of batches, of inputs whose number is known."""
        assert isinstance(self.inputs, Sized)
        whole, rest = divmod(len(self.inputs), self.window)
        return whole * -(-self.window // self.size) + -(-rest // self.size)

    def __iter__(self) -> Iterator[Sequence[tuple[int, Any]]]:
        if self._unsorted():
            assert isinstance(self.inputs, Sized)
            for start in range(0, len(self.inputs), self.window):
                window = range(start, min(start + self.window, len(self.inputs)))
                for place in range(0, len(window), self.size):
                    yield _Unread(self.inputs, window[place : place + self.size], self.first)
            return
        stream = enumerate(self.inputs, self.first)
        while items := list(islice(stream, self.window)):
            # longest first: a batch that does not fit in memory fails at once
            items.sort(key=lambda item: (-self.length(item[1]), item[0]))
            for start in range(0, len(items), self.size):
                yield items[start : start + self.size]

    def _unsorted(self) -> bool:
        """Whether inputs can be indexed and are no texts: nothing to sort by, so no need to read them all."""
        indexed = hasattr(self.inputs, "__getitem__") and isinstance(self.inputs, Sized) and len(self.inputs)
        return bool(indexed) and not isinstance(self.inputs[0], str | tuple | list)  # type: ignore[index]


class _Unread(Sequence[tuple[int, Any]]):
    """A batch whose inputs are read when they are asked for: only who takes it decodes its images."""

    def __init__(self, inputs: Any, places: range, first: int) -> None:
        self.inputs, self.places, self.first = inputs, places, first

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        number = self.places[place]
        return self.first + number, self.inputs[number]


# texts that are tried: characters say roughly which ones have the most tokens
TRIED = 32


def longest(folder: str, inputs: Sequence[Any]) -> int | None:
    """Return the tokens of the longest text (or pair) for the model in a folder; None for other inputs."""
    if not len(inputs) or not isinstance(inputs[0], str | tuple):
        return None
    texts = [text if isinstance(text, str) else " ".join(map(str, text)) for text in inputs]
    tokenizer, _ = preprocessors(folder, {"trust_remote_code": False})
    if tokenizer is None:
        return None
    tried = sorted(texts, key=len)[-TRIED:]
    return max(len(ids) for ids in tokenizer(tried)["input_ids"]) + 2


# Products of fewer rows cost more to add up than to make; more would leave processes without work.
UNIT_ROWS = 512
# Of known inputs there are at least so many units, so that processes have equal shares.
LEAST_UNITS = 4


def unit_size(inputs: Any, batch_size: int, tokens_per_input: int | None) -> int:
    """Return the batches of a unit, which depend on inputs and options but not on the processes."""
    if tokens_per_input is None:
        return 1
    wanted = UNIT_ROWS // max(1, batch_size * tokens_per_input)
    if isinstance(inputs, Sized):
        wanted = min(wanted, -(-len(inputs) // batch_size) // LEAST_UNITS)
    return max(1, wanted)


def run_shared(
    batches: Iterable[Sequence[tuple[int, Any]]],
    step: Callable[[Numbered], Any],
    sums: Sums,
    *,
    unit: int = 1,
    state: SavedState | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Run `step` on every batch in one of the processes, add the sums up, and return the number of inputs.

    Args:
        batches: the same in every process.
        step: adds a batch to `sums`, which in the end are those of all processes, in every process.
        sums: what is added up.
        unit: batches that are dealt out, and whose rows are multiplied, together.
        state: where sums are saved; units that it covers are not run again.
        progress: called with the number of inputs that were passed, after each batch of this process.
    """
    stream = iter(batches)
    seen, units, turn, reported = 0, 0, 0, -1
    while unit_of := list(islice(stream, unit)):
        number, units = units, units + 1
        known = state is not None and state.covers(number, unit_of)
        turn += not known
        if known or not parallel.mine(turn - 1):
            seen += sum(map(len, unit_of))
            continue
        read = [list(batch) for batch in unit_of]
        for batch in read:
            step(batch)
            seen += len(batch)
            if progress is not None:
                progress(reported := seen)
        sums.flush()
        if state is not None:
            state.add(number, read)
    if state is not None:
        state.finish(units)
    sum_moments(sums.moments)
    if progress is not None and 0 <= reported < seen:
        progress(seen)
    return seen


def summed(moments: Moments | None) -> Moments:
    """Return the sum over processes; None where this one had no rows."""
    sums = {} if moments is None else {"": moments}
    sum_moments(sums)
    return sums[""]


def sum_moments(moments: dict[str, Moments]) -> None:
    """Replace Moments by their sums over processes; a process that lacks a name counts as zero."""
    if parallel.size() == 1:
        return
    views = parallel.gather(
        {
            name: (total.width_a, total.width_b, total.parts, str(total.sum_a.device))
            for name, total in moments.items()
        }
    )
    known = {name: about for view in views for name, about in view.items()}
    for name, (width_a, width_b, parts, device) in known.items():
        if name not in moments:
            where = parallel.device(device.partition(":")[0])
            moments[name] = Moments.zeros(width_a, width_b, parts=parts, name=name, device=where)
    ordered = [moments[name] for name in known]
    numbers = torch.tensor([[total.count, float(not total.exact)] for total in ordered], dtype=torch.float64)
    parallel.add_up([numbers, *(tensor for total in ordered for tensor in total.tensors())])
    for total, (count, inexact) in zip(ordered, numbers.tolist(), strict=True):
        total.count, total.exact = count, not inexact
    seen = parallel.gather([total.marks for total in ordered])
    for total, marks in zip(ordered, zip(*seen, strict=True), strict=True):
        present = [part for part in marks if part is not None]
        total.marks = torch.cat(present)[:COMPARED_ROWS] if present else None
