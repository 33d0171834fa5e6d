"""Barycentric interpolation of many models on the sphere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from transship.errors import OptionError
from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.spans import combine, gram, length_of
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class MultiSlerp(RecipeMethod):
    """Interpolate many models on the sphere, in the tangent space at their weighted mean.

    With unit vectors u_i, μ = Σ w_i u_i normalised and v = Σ w_i (u_i − ⟨u_i, μ⟩ μ): (μ cos|v| + v
    sin|v|/|v|) Σ w_i |x_i|. One step of the mean that `karcher` iterates. On updates when there is a base.

    Attributes:
        weight: the weight of each model.
        normalize_weights: make the weights sum to 1.
        eps: lengths below this count as zero.
    """

    paper: ClassVar[str] = "Goddard, 2025"
    base: ClassVar[Literal["required", "optional", "input"]] = "optional"
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight",)

    weight: float = 1.0
    normalize_weights: bool = True
    eps: float = 1e-8

    def merge(self, operands: Operands) -> Iterator[Floats]:
        if len(operands.models) == 1:
            return combine(operands, [1.0])
        weights = np.array(operands.number("weight"))
        if self.normalize_weights:
            if weights.sum() == 0:
                raise _balanced(operands.name)
            weights = weights / weights.sum()
        products = gram(operands)
        norms = np.sqrt(np.diag(products))
        # everything below is a coefficient of d_1 … d_n; ⟨Σ a_i d_i, Σ b_j d_j⟩ = aᵀ G b
        units = np.diag(1.0 / (norms + self.eps))
        mean = weights @ units
        length = length_of(mean, products)
        if length < max(self.eps, 1e-6):  # float32 tensors that cancel leave a direction of noise
            if len(weights) != 2:
                raise _balanced(operands.name)
            return combine(operands, weights.tolist())
        mean /= length
        tangent = weights @ (units - np.outer(units @ products @ mean, mean))
        angle = length_of(tangent, products) + self.eps
        result = (mean * np.cos(angle) + tangent * (np.sin(angle) / angle)) * (norms @ weights)
        return combine(operands, result.tolist())


def _balanced(name: str) -> OptionError:
    return OptionError(
        "the weighted directions cancel out, so that they have no mean",
        where=name,
        fix="choose other weights",
    )
