"""Spherical interpolation between the base and one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.spans import combine, gram, slerp_coefficients
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Slerp(RecipeMethod):
    """Move from the base towards one model along the great circle through both.

    Shoemake, "Animating Rotation with Quaternion Curves": sin((1−t)θ)/sin θ · b + sin(tθ)/sin θ · x with θ
    the angle between the flattened tensors, which keep their lengths; the straight line where |cos θ| >
    0.9995.

    Attributes:
        t: 0 is the base, 1 the model.
    """

    paper: ClassVar[str] = "Shoemake, 1985"
    required: ClassVar[tuple[str, ...]] = ("t",)
    most: ClassVar[int | None] = 1
    parity: ClassVar[bool] = True

    t: float = 0.5

    def merge(self, operands: Operands) -> Iterator[Floats]:
        pair = dataclasses.replace(operands, models=[operands.origin_reader(), operands.models[0]], base=None)
        products = gram(pair)
        norms = np.sqrt(np.diag(products))
        norms[norms <= 1e-8] = 1.0
        cosine = products[0, 1] / (norms[0] * norms[1])
        first, second = slerp_coefficients(cosine, self.t, abs(cosine) > 0.9995)
        return combine(pair, [float(first), float(second)])
