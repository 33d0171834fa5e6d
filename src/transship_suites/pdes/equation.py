"""What every equation is: a frozen dataclass of constants that makes fields from a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transship.errors import NumericalError, OptionError
from transship.numerics import derive_seed

Array = npt.NDArray[np.float64]
_CHUNK = 64  # rows solved at once: what stays near the processor


@dataclass(frozen=True, eq=False)
class Fields:
    """States at the start and at the end.

    Attributes:
        inputs: [rows, channels, places…].
        outputs: [rows, channels, places…].
    """

    inputs: Array
    outputs: Array

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Equation(ABC):
    """An equation with its constants.

    Attributes:
        points: places per axis.
        time: when the outputs are taken; equations without time ignore it.
    """

    points: int = 128
    time: float = 1.0

    @abstractmethod
    def initial(self, draw: np.random.Generator) -> Array:
        """Return one state at the start: [channels, places…]."""

    @abstractmethod
    def solve(self, inputs: Array) -> Array:
        """Return the states at the end of many at the start: [rows, channels, places…]."""

    def generate(self, count: int, seed: int = 0) -> Fields:
        """Return `count` fields. Row i depends on the seed and i alone, not on how many are made."""
        if count < 1 or self.points < 4 or self.time < 0:
            raise OptionError(
                f"{count} fields of {self.points} points until {self.time}",
                where=type(self).__name__.lower(),
                fix="make one field or more, of four points or more, until a time from 0 on",
            )
        inputs = np.stack([self.initial(self._draw(seed, row)) for row in range(count)])
        parts = [self.solve(inputs[start : start + _CHUNK]) for start in range(0, count, _CHUNK)]
        outputs = np.concatenate(parts)
        if not np.isfinite(outputs).all():
            raise NumericalError(
                "the scheme did not stay finite",
                where=type(self).__name__.lower(),
                fix="use more points, a shorter step or more viscosity",
            )
        return Fields(inputs, outputs)

    def _draw(self, seed: int, row: int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(seed, type(self).__name__, row))

    @property
    def centres(self) -> Array:
        """The middles of `points` equal cells of the unit interval."""
        return (np.arange(self.points) + 0.5) / self.points


def waves(places: Array, draw: np.random.Generator, *, most: int = 4, plain: bool = False) -> Array:
    """Return PDEBench's random wave at `places` of a period of 1: a sum of two sines.

    Wave numbers are 1 … `most`, amplitudes from 0 to 1, phases random. Unless `plain`, one wave of ten is
    replaced by its absolute value (with a random sign) and one of ten is cut to a smooth random window.
    """
    numbers, sizes = draw.integers(1, most + 1, 2), draw.random(2)
    phases = 2 * np.pi * draw.random(2)
    shape, sign, ends = draw.random(2), float(draw.choice([-1, 1])), draw.random(2)
    wave: Any = (sizes[:, None] * np.sin(2 * np.pi * numbers[:, None] * places + phases[:, None])).sum(0)
    if plain:
        return np.asarray(wave)
    if shape[0] < 0.1:
        wave = sign * np.abs(wave)
    if shape[1] < 0.1:
        left, right = 0.1 + 0.35 * ends[0], 0.55 + 0.35 * ends[1]
        inside = np.mod(places, 1.0)
        wave = wave * 0.5 * (np.tanh((inside - left) / 0.01) - np.tanh((inside - right) / 0.01))
    return np.asarray(wave)


def spectral(points: int) -> Array:
    """Return the angular wave numbers 2πn of a real Fourier transform on a period of 1."""
    return np.asarray(2 * np.pi * np.arange(points // 2 + 1), dtype=np.float64)


def minmod(left: Any, right: Any) -> Any:
    """Return the smaller of two slopes where they agree in sign, else 0, so that no extremum is made."""
    return np.where(left * right > 0, np.where(np.abs(left) < np.abs(right), left, right), 0.0)
