"""DELLA: drop at random, small entries more often, then add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.maths.updates import Sparsifier, by_rank_and_chance
from transship.verbs.merge.methods._updates import UpdateMethod


@dataclass(frozen=True, kw_only=True)
class DellaLinear(UpdateMethod):
    """Drop entries at random, small ones of each row more often, and add the rest.

    Deep et al., "DELLA-Merging: Reducing Interference in Model Merging through Magnitude-Based Sampling": an
    entry of rank r ∈ [0, 1] in its row is kept with probability density − ε + 2 ε r. The paper divides each
    kept entry by its probability; recipes restore the L1 norm of the tensor, as mergekit does.

    Attributes:
        density: the mean probability with which an entry is kept.
        epsilon: how far the probabilities lie from the density.
        rescale: enlarge what is kept, to make up for what was dropped.
        rescale_by: `norm` restores the L1 norm of each tensor, as mergekit does; `density` divides each
            entry by its probability, as the paper does.
    """

    paper: ClassVar[str] = "Deep et al., 2024"
    per_model: ClassVar[tuple[str, ...]] = ("weight", "density", "epsilon")
    rows: ClassVar[bool] = True

    epsilon: float = 0.15
    rescale: bool = True
    rescale_by: Literal["norm", "density"] = "norm"

    @property
    def restores_norm(self) -> bool:
        """Whether what is kept is enlarged until the L1 norm is as before."""
        return self.rescale and self.rescale_by == "norm"

    def sparsifier(self, operands: Operands, index: int) -> Sparsifier:
        """Return what drops entries by rank and chance."""
        density, epsilon = (operands.number(name)[index] for name in ("density", "epsilon"))
        inverse = self.rescale and self.rescale_by == "density"
        return by_rank_and_chance(operands, index, density, epsilon, inverse=inverse)
