"""Model Breadcrumbs: drop outliers and small entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.maths.sparsify import Sparsifier, matching_norm, without_outliers
from transship.verbs.merge.methods._updates import UpdateMethod
from transship.verbs.merge.protocol import Operands


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

    def sparsifiers(self, operands: Operands) -> Sequence[Sparsifier]:
        """Return what drops both ends."""
        sparsifiers = []
        for index, density in enumerate(operands.number("density")):
            kept = without_outliers(operands, index, density, operands.number("gamma")[index])
            sparsifiers.append(matching_norm(operands, index, kept) if self.rescale else kept)
        return sparsifiers
