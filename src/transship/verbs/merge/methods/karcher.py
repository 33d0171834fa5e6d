"""The Karcher mean of the models on the sphere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.spans import Doubles, combine, gram, length_of
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Karcher(RecipeMethod):
    """Take the Riemannian centre of mass of the models' directions, with their mean length.

    The point of least summed squared angle to all models, by the iteration μ ← exp_μ(mean of log_μ(u_i)). A
    base is a model like the others.

    Attributes:
        max_iter: the most steps.
        tol: stop when a step is shorter than this; shorter models are left out.
    """

    paper: ClassVar[str] = "Karcher, 1977"
    base: ClassVar[Literal["required", "optional", "input"]] = "input"

    max_iter: int = 10
    tol: float = 1e-5

    def merge(self, operands: Operands) -> Iterator[Floats]:
        products = gram(operands)
        norms = np.sqrt(np.diag(products))
        there = norms > self.tol
        if len(norms) == 1 or not there.any():
            return combine(operands, [1.0 if len(norms) == 1 else 0.0] * len(norms))
        return combine(operands, (self._centre(products, norms, there) * norms.mean()).tolist())

    def _centre(self, products: Doubles, norms: Doubles, there: npt.NDArray[np.bool_]) -> Doubles:
        """Return the coefficients of the centre in terms of the models; ⟨Σ a_i x_i, Σ b_j x_j⟩ = aᵀ G b."""
        units = np.diag(1.0 / np.where(norms > 0, norms, 1.0))[there]
        mean: Doubles = units.mean(axis=0)
        length = length_of(mean, products)
        mean = units[0] if length < self.tol else mean / length
        for _ in range(self.max_iter):
            cosines = np.clip(units @ products @ mean, -1.0, 1.0)
            angles = np.arccos(cosines)
            far = angles >= self.tol
            factors = angles[far] / np.sin(angles[far]) / len(units)
            tangent = factors @ (units[far] - np.outer(cosines[far], mean))
            length = length_of(tangent, products)
            if length < self.tol:
                break
            mean = np.cos(length) * mean + np.sin(length) * tangent / length
            size = length_of(mean, products)
            mean = mean / size if size > self.tol else mean
        return mean
