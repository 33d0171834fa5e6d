"""Diffusion and reaction in one dimension, by splitting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from transship_suites.pdes.equation import Array, Equation, spectral, waves


@dataclass(frozen=True, kw_only=True)
class DiffusionReaction(Equation):
    """u_t = ν u_xx + ρ u (1 − u) on a period of 1.

    Strang splitting of two exact flows: heat in Fourier space and the logistic equation at every place.
    Initial states are the absolute values of random waves, scaled to between 0 and 1.
    """

    points: int = 256
    time: float = 0.29
    diffusivity: float = 0.5
    growth: float = 1.0
    step: float = 0.01

    def initial(self, draw: np.random.Generator) -> Array:
        """Return a random state [1, points] between 0 and 1."""
        state = np.abs(waves(self.centres, draw))
        return (state / max(float(state.max()), 1e-12))[None]

    def solve(self, inputs: Array) -> Array:
        """Return the states at the end [rows, 1, points]."""
        steps = max(1, math.ceil(self.time / self.step))
        step = self.time / steps
        spread = np.exp(-self.diffusivity * spectral(self.points) ** 2 * step)
        half = math.exp(self.growth * step / 2)
        state = inputs
        for _ in range(steps):
            state = state * half / (1 + state * (half - 1))
            state = np.fft.irfft(np.fft.rfft(state, axis=-1) * spread, n=self.points, axis=-1)
            state = state * half / (1 + state * (half - 1))
        return state
