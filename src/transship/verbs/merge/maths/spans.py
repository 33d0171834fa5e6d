"""Means on a sphere lie in the span of their inputs: inner products give the coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from transship.verbs.merge.maths.operands import Floats, Operands

Doubles = npt.NDArray[np.float64]


def gram(operands: Operands) -> Doubles:
    """Return G[i, j] = ⟨d_i, d_j⟩ over the tensor in float64, with d_i = x_i − b, or x_i without a base."""
    count = len(operands.models)
    total = np.zeros((count, count))
    for part in operands.parts():
        origin = operands.origin(part) if operands.base else None
        rows = np.stack(operands.updates(part, origin)).astype(np.float64)
        total += rows @ rows.T
    return total


def combine(operands: Operands, coefficients: Sequence[float]) -> Iterator[Floats]:
    """Yield Σ c_i d_i, and b added where there is a base."""
    scales = [np.float32(value) for value in coefficients]
    for part in operands.parts():
        origin = operands.origin(part) if operands.base else None
        total = np.zeros(part.stop - part.start, np.float32)
        for index, scale in enumerate(scales):
            total += operands.update(index, part, origin) * scale
        if origin is not None:
            total += origin
        yield total


def length_of(coefficients: Doubles, products: Doubles) -> float:
    """Return ‖Σ c_i d_i‖ from the Gram matrix of the d_i."""
    return float(np.sqrt(max(float(coefficients @ products @ coefficients), 0.0)))


def slerp_coefficients(
    cosine: npt.ArrayLike, share: float, straight: npt.ArrayLike
) -> tuple[Doubles, Doubles]:
    """Return sin((1−t)θ)/sin θ and sin(tθ)/sin θ, or 1−t and t where `straight` says the two are in line."""
    straight = np.asarray(straight)
    angle = np.arccos(np.where(straight, 0.0, np.clip(cosine, -1.0, 1.0)))
    first = np.where(straight, 1.0 - share, np.sin((1.0 - share) * angle) / np.sin(angle))
    second = np.where(straight, share, np.sin(share * angle) / np.sin(angle))
    return first, second
