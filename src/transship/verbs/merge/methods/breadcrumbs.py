"""Model Breadcrumbs: drop outliers and small entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.maths.updates import Sparsifier, without_outliers
from transship.verbs.merge.methods._updates import UpdateMethod


@dataclass(frozen=True, kw_only=True)
class Breadcrumbs(UpdateMethod):
    """Drop the largest and the smallest entries of each update, and add the rest.

    Davari and Belilovsky, "Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks".

    Attributes:
        gamma: the share of largest entries that is dropped first.
    """

    paper: ClassVar[str] = "Davari and Belilovsky, 2024"
    per_model: ClassVar[tuple[str, ...]] = ("weight", "density", "gamma")
    parity: ClassVar[bool] = True
    whole: ClassVar[int] = 1

    gamma: float = 0.01

    def sparsifier(self, operands: Operands, index: int) -> Sparsifier:
        density, gamma = (operands.number(name)[index] for name in ("density", "gamma"))
        return without_outliers(operands, index, density, gamma)
