"""DARE: drop at random and rescale, with TIES sign election."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.verbs.merge.methods._protocol import Floats, Operands, RecipeMethod
from transship.verbs.merge.methods._sparsify import Rescaled, Sparsifier, by_chance, matching_norm
from transship.verbs.merge.methods._updates import merge_updates


@dataclass(frozen=True, kw_only=True)
class DareTies(RecipeMethod):
    """Drop entries of each update at random, enlarge the others, and merge those of the elected sign.

    Yu et al., "Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch",
    Eq. (1), with the sign election of TIES. The paper divides by the density; recipes restore the L1 norm,
    as mergekit does.

    Attributes:
        weight: the factor of each model's update.
        density: the probability with which an entry is kept.
        normalize: divide by the weights of what was summed.
        scale: the factor of the joint update (`lambda` in recipes).
        rescale: enlarge what is kept, to make up for what was dropped.
        rescale_by: `norm` restores the L1 norm of each tensor, as mergekit does; `density` divides by the
            density, as the paper does.
        int8_mask: accepted for recipes that set it; it changes nothing here.
    """

    paper: ClassVar[str] = "Yu et al., 2024"
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight", "density")
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    parity: ClassVar[bool] = True

    weight: float = 1.0
    density: float = 1.0
    normalize: bool = False
    scale: float = 1.0
    rescale: bool = True
    rescale_by: Literal["norm", "density"] = "norm"
    int8_mask: bool = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor."""
        return merge_updates(
            operands, self._dropped(operands), elect=True, normalize=self.normalize, scale=self.scale
        )

    def _dropped(self, operands: Operands) -> list[Sparsifier]:
        found = []
        for index, density in enumerate(operands.number("density")):
            kept = by_chance(operands, index, density)
            if self.rescale and self.rescale_by == "norm":
                kept = matching_norm(operands, index, kept)
            elif self.rescale and 0 < density < 1:
                kept = Rescaled(kept, 1 / density)
            found.append(kept)
        return found
