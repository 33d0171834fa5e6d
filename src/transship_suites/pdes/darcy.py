"""Steady Darcy flow in two dimensions, by finite volumes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transship_suites.pdes.equation import Array, Equation


@dataclass(frozen=True, kw_only=True)
class Darcy(Equation):
    """−∇·(a ∇u) = β on the unit square, u = 0 on its edge; a is `low` or `high` in patches.

    The coefficient is thresholded from the sum of five random Gaussians. Cell-centred finite volumes with
    harmonic means of a at the faces, and one sparse factorisation per row.
    """

    points: int = 64
    force: float = 1.0
    low: float = 0.1
    high: float = 1.0

    def initial(self, draw: np.random.Generator) -> Array:
        """Return a coefficient field [1, points, points]."""
        x, y = np.meshgrid(self.centres, self.centres, indexing="ij")
        total = np.zeros_like(x)
        for _ in range(5):
            (across, along), width = draw.random(2), 0.05 + 0.2 * draw.random()
            total += draw.normal() * np.exp(-((x - across) ** 2 + (y - along) ** 2) / (2 * width**2))
        coefficient: Array = np.where(total > np.median(total), self.high, self.low)
        return coefficient[None]

    def solve(self, inputs: Array) -> Array:
        """Return the pressures [rows, 1, points, points]."""
        return np.stack([self._pressure(coefficient[0])[None] for coefficient in inputs])

    def _pressure(self, coefficient: Array) -> Array:
        import scipy.sparse
        import scipy.sparse.linalg

        count = self.points
        number = np.arange(count * count).reshape(count, count)
        diagonal = np.zeros((count, count))
        rows, columns, values = [], [], []
        for axis in (0, 1):
            one = np.moveaxis(coefficient, axis, 0)
            numbers, sums = np.moveaxis(number, axis, 0), np.moveaxis(diagonal, axis, 0)
            face = 2 * one[:-1] * one[1:] / (one[:-1] + one[1:])
            rows += [numbers[:-1].ravel(), numbers[1:].ravel()]
            columns += [numbers[1:].ravel(), numbers[:-1].ravel()]
            values += [-face.ravel(), -face.ravel()]
            sums[:-1] += face
            sums[1:] += face
            sums[0] += 2 * one[0]  # the edge is half a cell away
            sums[-1] += 2 * one[-1]
        rows.append(number.ravel())
        columns.append(number.ravel())
        values.append(diagonal.ravel())
        size = count * count
        matrix = scipy.sparse.csc_matrix(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(size, size)
        )
        right = np.full(size, self.force / count**2)
        pressure: Array = scipy.sparse.linalg.splu(matrix).solve(right).reshape(count, count)
        return pressure
