"""DELLA: drop at random, small entries more often, with sign election."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.verbs.merge.methods._protocol import Floats, Operands, RecipeMethod
from transship.verbs.merge.methods._sparsify import Sparsifier, by_rank_and_chance, matching_norm
from transship.verbs.merge.methods._updates import merge_updates


@dataclass(frozen=True, kw_only=True)
class Della(RecipeMethod):
    """Drop entries at random, small ones of each row more often, and merge those of the elected sign.

    Deep et al., "DELLA-Merging: Reducing Interference in Model Merging through Magnitude-Based Sampling": an
    entry of rank r ∈ [0, 1] in its row is kept with probability density − ε + 2 ε r. The paper divides each
    kept entry by its probability; recipes restore the L1 norm of the tensor, as mergekit does.

    Attributes:
        weight: the factor of each model's update.
        density: the mean probability with which an entry is kept.
        epsilon: how far the probabilities lie from the density.
        normalize: divide by the weights of what was summed.
        scale: the factor of the joint update (`lambda` in recipes).
        rescale: enlarge what is kept, to make up for what was dropped.
        rescale_by: `norm` restores the L1 norm of each tensor, as mergekit does; `density` divides each
            entry by its probability, as the paper does.
        int8_mask: accepted for recipes that set it; it changes nothing here.
    """

    paper: ClassVar[str] = "Deep et al., 2024"
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight", "density", "epsilon")
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}

    weight: float = 1.0
    density: float = 1.0
    epsilon: float = 0.15
    normalize: bool = True
    scale: float = 1.0
    rescale: bool = True
    rescale_by: Literal["norm", "density"] = "norm"
    int8_mask: bool = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor."""
        return merge_updates(
            operands,
            self._dropped(operands),
            elect=True,
            normalize=self.normalize,
            scale=self.scale,
            rows=True,
        )

    def _dropped(self, operands: Operands) -> list[Sparsifier]:
        inverse = self.rescale and self.rescale_by == "density"
        found = []
        for index, density in enumerate(operands.number("density")):
            epsilon = operands.number("epsilon")[index]
            kept = by_rank_and_chance(operands, index, density, epsilon, inverse=inverse)
            match = self.rescale and not inverse
            found.append(matching_norm(operands, index, kept, rows=True) if match else kept)
        return found
