"""Compressible viscous flow in one dimension, by finite volumes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transship_suites.pdes.equation import Array, Equation, minmod, waves


@dataclass(frozen=True, kw_only=True)
class Compressible(Equation):
    """The compressible Navier-Stokes equations on a period of 1, γ = 5/3.

    ρ_t + (ρv)_x = 0, (ρv)_t + (ρv² + p)_x = μ v_xx, E_t + ((E + p) v)_x = μ (v v_x)_x with μ = ζ + 4η/3 and
    E = p/(γ − 1) + ρv²/2; no heat is conducted. Rusanov's flux on limited slopes, central viscosity, Heun's
    two steps. Channels are density, velocity and pressure. Steps shrink with the square of a cell, so η and ζ
    are 0.01 here and not the paper's 0.1 or 1.
    """

    points: int = 128
    time: float = 1.0
    gamma: float = 5 / 3
    shear: float = 0.01
    bulk: float = 0.01
    courant: float = 0.4

    def initial(self, draw: np.random.Generator) -> Array:
        """Return density and pressure around 1 and velocity around 0, as random waves [3, points]."""
        parts = [waves(self.centres, draw, plain=True) / 2 for _ in range(3)]
        return np.stack([1 + 0.4 * parts[0], 0.5 * parts[1], 1 + 0.4 * parts[2]])

    def solve(self, inputs: Array) -> Array:
        """Return density, velocity and pressure at the end [rows, 3, points]."""
        density, velocity, pressure = np.moveaxis(inputs, 1, 0)
        energy = pressure / (self.gamma - 1) + 0.5 * density * velocity**2
        state = np.stack([density, density * velocity, energy], 1)
        left = np.full((len(inputs), 1, 1), self.time)
        while left.max() > 1e-12:
            step = np.minimum(self._step(state), left)
            once = state + step * self._change(state)
            state = 0.5 * (state + once + step * self._change(once))
            left = left - step
        return self._plain(state)

    @property
    def viscosity(self) -> float:
        """μ = ζ + 4η/3."""
        return self.bulk + 4 * self.shear / 3

    def _plain(self, state: Array) -> Array:
        density, momentum, energy = np.moveaxis(state, 1, 0)
        velocity = momentum / density
        return np.stack([density, velocity, (self.gamma - 1) * (energy - 0.5 * momentum * velocity)], 1)

    def _step(self, state: Array) -> Array:
        density, velocity, pressure = np.moveaxis(self._plain(state), 1, 0)
        fastest = (np.abs(velocity) + np.sqrt(self.gamma * pressure / density)).max(-1)
        cell = 1 / self.points
        # both limits at once: a step that is just stable for each alone is not for their sum
        rate = fastest / (self.courant * cell) + self.viscosity / (0.45 * cell**2 * density.min(-1))
        step: Array = (1.0 / rate)[:, None, None]
        return step

    def _change(self, state: Array) -> Array:
        plain = self._plain(state)
        ahead = np.roll(plain, -1, -1) - plain
        slope = minmod(np.roll(ahead, 1, -1), ahead)
        left, right = plain + slope / 2, np.roll(plain - slope / 2, -1, -1)  # on the right face of every cell
        held, moved, speed = zip(*map(self._parts, (left, right)), strict=True)
        fastest = np.maximum(speed[0], speed[1])[:, None]
        flux = 0.5 * (moved[0] + moved[1]) - 0.5 * fastest * (held[1] - held[0])
        velocity = plain[:, 1]
        pull = self.viscosity * self.points * (np.roll(velocity, -1, -1) - velocity)
        flux[:, 1] -= pull
        flux[:, 2] -= pull * 0.5 * (velocity + np.roll(velocity, -1, -1))
        change: Array = self.points * (np.roll(flux, 1, -1) - flux)
        return change

    def _parts(self, plain: Array) -> tuple[Array, Array, Array]:
        """Return the conserved quantities, their flux and the fastest wave of states on faces."""
        density, velocity, pressure = np.moveaxis(plain, 1, 0)
        momentum = density * velocity
        energy = pressure / (self.gamma - 1) + 0.5 * momentum * velocity
        held = np.stack([density, momentum, energy], 1)
        moved = np.stack([momentum, momentum * velocity + pressure, (energy + pressure) * velocity], 1)
        return held, moved, np.abs(velocity) + np.sqrt(self.gamma * pressure / density)
