"""Diffusion retarded by sorption, by implicit steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transship_suites.pdes.equation import Array, Equation


@dataclass(frozen=True, kw_only=True)
class DiffusionSorption(Equation):
    """R(u) u_t = D u_xx on the unit interval, with Freundlich's retardation.

    R(u) = 1 + (1 − p)/p · ρ · k · n · u^(n − 1). u = 1 at the left end and u = −D u_x at the right one. A
    state starts at one random level between 0 and 0.2, so the task has one unknown: a few dozen rows tell it
    all.

    Implicit Euler on equal cells, R taken from the last guess, twice; all rows by one tridiagonal sweep.
    """

    points: int = 128
    time: float = 500.0
    diffusivity: float = 5e-4
    porosity: float = 0.29
    density: float = 2880.0
    freundlich: float = 3.5e-4
    exponent: float = 0.874
    steps: int = 100

    def initial(self, draw: np.random.Generator) -> Array:
        """Return a constant state [1, points]."""
        return np.full((1, self.points), 0.2 * draw.random())

    def retardation(self, state: Array) -> Array:
        """Return R(u)."""
        held = (1 - self.porosity) / self.porosity * self.density * self.freundlich * self.exponent
        found: Array = 1 + held * np.maximum(state, 1e-6) ** (self.exponent - 1)
        return found

    def solve(self, inputs: Array) -> Array:
        """Return the states at the end [rows, 1, points]."""
        state = inputs[:, 0]
        cell, step = 1 / self.points, self.time / self.steps
        lower, middle, upper, source = self._operator(cell)
        for _ in range(self.steps):
            guess = state
            for _ in range(2):
                weight = step / self.retardation(guess)
                guess = tridiagonal(
                    -weight * lower, 1 - weight * middle, -weight * upper, state + weight * source
                )
            state = guess
        return state[:, None]

    def _operator(self, cell: float) -> tuple[Array, Array, Array, Array]:
        """Return the three diagonals of D ∂² and what the left end adds; all [points]."""
        rate = self.diffusivity / cell**2
        lower, middle, upper = (np.full(self.points, value * rate) for value in (1.0, -2.0, 1.0))
        source = np.zeros(self.points)
        # the ends are faces, half a cell away: D (u_face − u) · 2 / cell²
        lower[0], middle[0], source[0] = 0.0, -3 * rate, 2 * rate
        # at the right face u = D (u_{last−1} − u_last) / cell
        slope = self.diffusivity / cell
        lower[-1], middle[-1], upper[-1] = rate * (1 + 2 * slope), -rate * (3 + 2 * slope), 0.0
        return lower, middle, upper, source


def tridiagonal(lower: Array, middle: Array, upper: Array, right: Array) -> Array:
    """Return the solutions of many tridiagonal systems [rows, points] by a forward and a backward sweep."""
    count = right.shape[1]
    ratio, value = np.empty_like(right), np.empty_like(right)
    ratio[:, 0], value[:, 0] = upper[:, 0] / middle[:, 0], right[:, 0] / middle[:, 0]
    for place in range(1, count):
        pivot = middle[:, place] - lower[:, place] * ratio[:, place - 1]
        ratio[:, place] = upper[:, place] / pivot
        value[:, place] = (right[:, place] - lower[:, place] * value[:, place - 1]) / pivot
    for place in range(count - 2, -1, -1):
        value[:, place] -= ratio[:, place] * value[:, place + 1]
    return value
