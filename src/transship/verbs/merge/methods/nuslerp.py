"""Spherical interpolation between two models, or between their updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.spans import Doubles, combine, gram, slerp_coefficients
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class NuSlerp(RecipeMethod):
    """Interpolate on the sphere between two models, or between two updates when there is a base.

    As `slerp` with t = w_2 / (w_1 + w_2); over the whole tensor, or for each row or column by itself.

    Attributes:
        weight: the two weights; their ratio is the position.
        nuslerp_flatten: treat the tensor as one vector.
        nuslerp_row_wise: without `nuslerp_flatten`, interpolate along the first axis and not along the last
            one.
    """

    paper: ClassVar[str] = "Goddard, 2024"
    base: ClassVar[Literal["required", "optional", "input"]] = "optional"
    least: ClassVar[int] = 2
    most: ClassVar[int | None] = 2
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight",)

    weight: float = 1.0
    nuslerp_flatten: bool = True
    nuslerp_row_wise: bool = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        first, second = operands.number("weight")
        share = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
        if self.nuslerp_flatten or len(operands.shape) < 2:
            yield from combine(operands, [float(c) for c in _coefficients(share, *_products(gram(operands)))])
        elif self.nuslerp_row_wise and len(operands.shape) > 1:
            yield from self._columns(operands, share)
        else:
            yield from self._rows(operands, share)

    def _rows(self, operands: Operands, share: float) -> Iterator[Floats]:
        width = operands.shape[-1]
        for part in operands.row_parts(width):
            left, right = (update.reshape(-1, width) for update in operands.updates(part))
            products = [np.einsum("ij,ij->i", a, b, dtype=np.float64) for a, b in _pairs(left, right)]
            first, second = (scale[:, None].astype(np.float32) for scale in _coefficients(share, *products))
            mixed = (left * first + right * second).reshape(-1)
            yield mixed if operands.base is None else mixed + operands.origin(part)

    def _columns(self, operands: Operands, share: float) -> Iterator[Floats]:
        width = operands.row
        products = [np.zeros(width) for _ in range(3)]
        for part in operands.row_parts():
            left, right = (update.reshape(-1, width) for update in operands.updates(part))
            for total, (a, b) in zip(products, _pairs(left, right), strict=True):
                total += np.einsum("ij,ij->j", a, b, dtype=np.float64)
        first, second = (values.astype(np.float32) for values in _coefficients(share, *products))
        for part in operands.row_parts():
            left, right = (update.reshape(-1, width) for update in operands.updates(part))
            mixed = (left * first + right * second).reshape(-1)
            yield mixed if operands.base is None else mixed + operands.origin(part)


def _pairs(left: Floats, right: Floats) -> list[tuple[Floats, Floats]]:
    return [(left, left), (right, right), (left, right)]


def _products(products: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    return products[0, 0], products[1, 1], products[0, 1]


def _coefficients(share: float, left: Doubles, right: Doubles, cross: Doubles) -> tuple[Doubles, Doubles]:
    """Return the coefficients from ‖d_1‖², ‖d_2‖² and ⟨d_1, d_2⟩; the straight line where sin²θ ≤ 1e-16."""
    lengths = np.maximum(np.sqrt(left), 1e-7) * np.maximum(np.sqrt(right), 1e-7)
    cosine = np.clip(cross / lengths, -1.0, 1.0)
    return slerp_coefficients(cosine, share, 1.0 - np.square(cosine) <= 1e-16)
