"""The parts that an Update is summed from, each able to give any stretch of one flattened tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.dtypes import Array, Floats

Layout = Literal["linear", "conv1d", "embedding"]
Reader = Callable[[int, int], Floats]
Factors = tuple[Floats, Floats]


class Term(Protocol):
    """One tensor's change, not yet read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor that changes."""

    def reader(self) -> Reader:
        """Return a function from (start, stop) to those elements of the flattened change."""

    def factors(self) -> Factors | None:
        """Return (up [out, rank], down [rank, in]) whose product is the change, or None where it is dense."""


@dataclass(frozen=True)
class Difference:
    """What one tensor of `tuned` has more than its partner in `base`."""

    base: Checkpoint
    base_name: str
    tuned: Checkpoint
    tuned_name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor that changes."""
        return self.base.info(self.base_name).shape

    def reader(self) -> Reader:
        """Return tuned − base by stretches, in float32; in float64, rounded once, where either is float64."""

        def read(start: int, stop: int) -> Floats:
            after = self.tuned.chunk(self.tuned_name, start, stop)
            before = self.base.chunk(self.base_name, start, stop)
            difference: Floats = np.subtract(after, before).astype(np.float32, copy=False)
            return difference

        return read

    def factors(self) -> None:
        """Return None: a difference is dense."""
        return


@dataclass(frozen=True)
class LowRank:
    """A change given by its two factors, as an adapter stores it.

    Attributes:
        load: reads (up [out, rank], down [rank, in]) with the scale folded in; the product, reshaped, is
            the change.
        layout: how the module holds the weight: `linear` [out, in], `conv1d` [in, out], `embedding` [words,
            width].
    """

    shape: tuple[int, ...]
    load: Callable[[], Factors]
    layout: Layout = "linear"

    def reader(self) -> Reader:
        """Return stretches of the product, computed for whole rows and cut."""
        up, down = self.load()
        width = max(down.shape[1], 1)

        def read(start: int, stop: int) -> Floats:
            first, last = start // width, -(-stop // width)
            rows: Floats = up[first:last] @ down
            return rows.reshape(-1)[start - first * width : stop - first * width]

        return read

    def factors(self) -> Factors:
        """Return the factors."""
        return self.load()


@dataclass(frozen=True)
class Dense:
    """A change that is at hand, or that a function makes when it is asked for."""

    shape: tuple[int, ...]
    load: Callable[[], Array]

    def reader(self) -> Reader:
        """Return stretches of the array."""
        flat = np.asarray(self.load(), np.float32).reshape(-1)
        return lambda start, stop: flat[start:stop]

    def factors(self) -> None:
        """Return None: the change is dense."""
        return
