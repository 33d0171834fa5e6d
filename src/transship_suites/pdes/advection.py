"""Linear advection, solved exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transship_suites.pdes.equation import Array, Equation, Fields, spectral, waves


@dataclass(frozen=True, kw_only=True)
class Advection(Equation):
    """u_t + β u_x = 0 on a period of 1: the wave moves by β t and keeps its shape.

    `generate` evaluates the moved wave itself, so that outputs are exact also where the wave has corners.
    """

    points: int = 256
    time: float = 2.0
    speed: float = 0.4

    def initial(self, draw: np.random.Generator) -> Array:
        """Return a random wave [1, points]."""
        return waves(self.centres, draw)[None]

    def solve(self, inputs: Array) -> Array:
        """Return the states moved by a Fourier shift, exact for waves that the points resolve."""
        turn = np.exp(-1j * spectral(self.points) * self.speed * self.time)
        moved: Array = np.fft.irfft(np.fft.rfft(inputs, axis=-1) * turn, n=self.points, axis=-1)
        return moved

    def generate(self, count: int, seed: int = 0) -> Fields:
        """Return the waves and the moved waves."""
        made = super().generate(count, seed)
        behind = self.centres - self.speed * self.time
        moved = np.stack([waves(behind, self._draw(seed, row))[None] for row in range(count)])
        return Fields(made.inputs, moved)
