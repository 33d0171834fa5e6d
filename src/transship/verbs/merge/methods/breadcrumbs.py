"""Model Breadcrumbs: drop outliers and small entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.methods._protocol import Floats, Operands, RecipeMethod
from transship.verbs.merge.methods._sparsify import Sparsifier, matching_norm, without_outliers
from transship.verbs.merge.methods._updates import merge_updates


@dataclass(frozen=True, kw_only=True)
class Breadcrumbs(RecipeMethod):
    """Drop the largest and the smallest entries of each update, and add the rest.

    Davari and Belilovsky, "Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks".

    Attributes:
        weight: the factor of each model's update.
        density: the share of each update's entries that is kept.
        gamma: the share of largest entries that is dropped first.
        normalize: divide by the weights of what was summed.
        scale: the factor of the joint update (`lambda` in recipes).
        rescale: enlarge what is kept so that the L1 norm is as before.
        int8_mask: accepted for recipes that set it; it changes nothing here.
    """

    paper: ClassVar[str] = "Davari and Belilovsky, 2024"
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight", "density", "gamma")
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    parity: ClassVar[bool] = True
    whole: ClassVar[int] = 1

    weight: float = 1.0
    density: float = 1.0
    gamma: float = 0.01
    normalize: bool = False
    scale: float = 1.0
    rescale: bool = False
    int8_mask: bool = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor."""
        return merge_updates(
            operands, self._masked(operands), elect=False, normalize=self.normalize, scale=self.scale
        )

    def _masked(self, operands: Operands) -> list[Sparsifier]:
        found = []
        for index, density in enumerate(operands.number("density")):
            kept = without_outliers(operands, index, density, operands.number("gamma")[index])
            found.append(matching_norm(operands, index, kept) if self.rescale else kept)
        return found
