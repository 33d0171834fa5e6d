"""Fields of partial differential equations, made on the spot from a seed by small schemes.

The equations, constants and initial states are those of PDEBench (Takamoto et al., "PDEBench: An Extensive
Benchmark for Scientific Machine Learning") as far as two cores allow; every class says where it differs. A
task is the state at the start in, the state at the end out, as cross-modal fine-tuning uses them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
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

    def initial(self, draw: np.random.Generator) -> Array:
        """Return one state at the start [channels, places…]: a random wave."""
        return waves(self.centres, draw)[None]

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


def waves(places: Array, draw: np.random.Generator, *, most: int = 4) -> Array:
    """Return PDEBench's random wave at `places` of a period of 1: a sum of two sines.

    Wave numbers are 1 … `most`, amplitudes from 0 to 1, phases random. One wave of ten is
    replaced by its absolute value (with a random sign) and one of ten is cut to a smooth random window.
    """
    numbers, sizes = draw.integers(1, most + 1, 2), draw.random(2)
    phases = 2 * np.pi * draw.random(2)
    shape, sign, ends = draw.random(2), float(draw.choice([-1, 1])), draw.random(2)
    wave: Any = (sizes[:, None] * np.sin(2 * np.pi * numbers[:, None] * places + phases[:, None])).sum(0)
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


@dataclass(frozen=True, kw_only=True)
class Advection(Equation):
    """u_t + β u_x = 0 on a period of 1: the wave moves by β t and keeps its shape.

    `generate` evaluates the moved wave itself, so that outputs are exact also where the wave has corners.
    """

    points: int = 256
    time: float = 2.0
    speed: float = 0.4

    def solve(self, inputs: Array) -> Array:
        """Return the states moved by a Fourier shift, exact for waves that the points resolve."""
        turn = np.exp(-1j * spectral(self.points) * self.speed * self.time)
        moved: Array = np.fft.irfft(np.fft.rfft(inputs, axis=-1) * turn, n=self.points, axis=-1)
        return moved

    def generate(self, count: int, seed: int = 0) -> Fields:
        """Return the waves and the moved waves."""
        still = super().generate(count, seed)
        behind = self.centres - self.speed * self.time
        moved = np.stack([waves(behind, self._draw(seed, row))[None] for row in range(count)])
        return Fields(still.inputs, moved)


@dataclass(frozen=True, kw_only=True)
class Burgers(Equation):
    """u_t + (u²/2)_x = (ν/π) u_xx on a period of 1.

    Fourier with 2/3 dealiasing; the viscous term is integrated exactly by an integrating factor, the rest by
    Runge and Kutta's fourth-order scheme. The paper's ν = 1 leaves a constant at t = 2 (its largest wave
    decays by e⁻²⁵), which no model need learn: ours is 0.01.
    """

    points: int = 256
    time: float = 2.0
    viscosity: float = 0.01
    step: float = 2e-3

    def solve(self, inputs: Array) -> Array:
        """Return the states at the end [rows, 1, points]."""
        numbers = spectral(self.points)
        kept = np.arange(len(numbers)) <= self.points // 3
        # stable below 2.8 / (|u| k); random waves stay below 2, so that the step is the same for all of them
        largest = max(2.0, float(np.abs(inputs).max()))
        step = min(self.step, 2.0 / (largest * numbers[kept][-1]))
        steps = max(1, math.ceil(self.time / step))
        step = self.time / steps
        half = np.exp(-self.viscosity / math.pi * numbers**2 * step / 2)
        derivative = -0.5j * numbers * kept

        def slope(wave: Any) -> Any:
            place = np.fft.irfft(wave, n=self.points, axis=-1)
            return derivative * np.fft.rfft(place * place, axis=-1)

        wave = np.fft.rfft(inputs, axis=-1) * kept
        for _ in range(steps):
            first = step * slope(wave)
            second = step * slope(half * (wave + first / 2))
            third = step * slope(half * wave + second / 2)
            fourth = step * slope(half * half * wave + half * third)
            wave = half * half * (wave + first / 6) + half * (second + third) / 3 + fourth / 6
        ended: Array = np.fft.irfft(wave, n=self.points, axis=-1)
        return ended


EQUATIONS: Mapping[str, type[Equation]] = {"advection": Advection, "burgers": Burgers}
