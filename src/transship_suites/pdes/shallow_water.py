"""Shallow water after a round dam breaks, by finite volumes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transship_suites.pdes.equation import Array, Equation, minmod


@dataclass(frozen=True, kw_only=True)
class ShallowWater(Equation):
    """h_t + ∇·(h v) = 0 and (h v)_t + ∇·(h v vᵀ + g h²/2) = 0 on a square of side 5, open at its edges.

    The water stands 2 high inside a circle of random radius (0.3 to 0.7) around the middle and 1 outside, so
    the task has one unknown. Rusanov's flux on slopes limited by minmod, Heun's two steps, CFL 0.4. Inputs
    and outputs are the height.
    """

    points: int = 64
    time: float = 1.0
    gravity: float = 1.0
    side: float = 5.0
    courant: float = 0.4

    def initial(self, draw: np.random.Generator) -> Array:
        """Return a height [1, points, points]."""
        line = self.side * (self.centres - 0.5)
        x, y = np.meshgrid(line, line, indexing="ij")
        return np.where(np.hypot(x, y) < 0.3 + 0.4 * draw.random(), 2.0, 1.0)[None]

    def solve(self, inputs: Array) -> Array:
        """Return the heights [rows, 1, points, points]."""
        return self.states(inputs)[:, :1]

    def states(self, inputs: Array) -> Array:
        """Return height and both momenta at the end [rows, 3, points, points] of water that was at rest."""
        state = np.concatenate([inputs, np.zeros_like(inputs), np.zeros_like(inputs)], 1)
        cell = self.side / self.points
        left = np.full((len(inputs), 1, 1, 1), self.time)
        while left.max() > 1e-12:
            # every row keeps its own clock, so that it does not depend on the rows beside it
            step = np.minimum(self.courant * cell / self._fastest(state), left)
            once = state + step * self._change(state, cell)
            state = 0.5 * (state + once + step * self._change(once, cell))
            left = left - step
        return state

    def _fastest(self, state: Array) -> Array:
        speed = np.abs(state[:, 1:] / state[:, :1]).max((1, 2, 3)) + np.sqrt(
            self.gravity * state[:, 0].max((1, 2))
        )
        fastest: Array = speed[:, None, None, None]
        return fastest

    def _change(self, state: Array, cell: float) -> Array:
        change = np.zeros_like(state)
        for axis in (2, 3):
            padded = np.moveaxis(state, axis, -1)
            padded = np.pad(padded, [(0, 0)] * 3 + [(2, 2)], mode="edge")
            jumps = np.diff(padded, axis=-1)
            slope = minmod(jumps[..., :-1], jumps[..., 1:])
            middle = padded[..., 1:-1]
            flux = self._flux(
                middle[..., :-1] + slope[..., :-1] / 2, middle[..., 1:] - slope[..., 1:] / 2, axis
            )
            change -= np.moveaxis(np.diff(flux, axis=-1), -1, axis) / cell
        return change

    def _flux(self, left: Array, right: Array, axis: int) -> Array:
        fluxes, speeds = [], []
        for height, across, along in (np.moveaxis(side, 1, 0) for side in (left, right)):
            through = (across, along)[axis - 2]
            speed = through / height
            parts = [through, across * speed, along * speed]
            parts[axis - 1] = parts[axis - 1] + 0.5 * self.gravity * height**2
            fluxes.append(np.stack(parts, 1))
            speeds.append(np.abs(speed) + np.sqrt(self.gravity * height))
        fastest = np.maximum(speeds[0], speeds[1])[:, None]
        flux: Array = 0.5 * (fluxes[0] + fluxes[1]) - 0.5 * fastest * (right - left)
        return flux
