"""Sums of updates: the part that task arithmetic, TIES, DARE, DELLA and Model Breadcrumbs share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.updates import Sparsifier, keep_all, matching_norm, merge_updates
from transship.verbs.merge.protocol import RecipeMethod, parameter


@dataclass(frozen=True, kw_only=True)
class UpdateMethod(RecipeMethod):
    """Add updates, pruned or not, to the base: what a method of this family says is which entries it keeps.

    Attributes:
        weight: the factor of each model's update.
        density: the share of each update's entries that is kept.
        normalize: divide by the weights of what was summed.
        scale: the factor of the joint update (`lambda` in recipes).
        rescale: enlarge what is kept so that the L1 norm is as before.
        int8_mask: accepted for recipes that set it; it changes nothing here.
    """

    of_updates: ClassVar[bool] = True
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight", "density")
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    elect: ClassVar[bool] = False
    rows: ClassVar[bool] = False

    weight: float = parameter(1.0, only="recipe")
    density: float = parameter(1.0, only="recipe")
    normalize: bool = parameter(False, only="recipe")
    scale: float = 1.0
    rescale: bool = parameter(False, only="recipe")
    int8_mask: bool = parameter(False, only="recipe")

    @property
    def restores_norm(self) -> bool:
        """Whether what is kept is enlarged until the L1 norm is as before."""
        return self.rescale

    def sparsifier(self, operands: Operands, index: int) -> Sparsifier:
        return keep_all

    def merge(self, operands: Operands) -> Iterator[Floats]:
        sparsifiers = []
        for index in range(len(operands.models)):
            kept = self.sparsifier(operands, index)
            sparsifiers.append(
                matching_norm(operands, index, kept, rows=self.rows) if self.restores_norm else kept
            )
        return merge_updates(
            operands,
            sparsifiers,
            elect=self.elect,
            normalize=self.normalize,
            scale=self.scale,
            rows=self.rows,
        )
