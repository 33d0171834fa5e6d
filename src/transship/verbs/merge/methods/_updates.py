"""Sums of updates: the part that task arithmetic, TIES, DARE, DELLA and Model Breadcrumbs share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.maths.sparsify import Sparsifier, keep_all
from transship.verbs.merge.maths.updates import merge_updates
from transship.verbs.merge.protocol import Floats, Operands, RecipeMethod, parameter


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

    def sparsifiers(self, operands: Operands) -> Sequence[Sparsifier]:
        """Return what prunes the update of each model."""
        return [keep_all] * len(operands.models)

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor."""
        return merge_updates(
            operands,
            self.sparsifiers(operands),
            elect=self.elect,
            normalize=self.normalize,
            scale=self.scale,
            rows=self.rows,
        )
