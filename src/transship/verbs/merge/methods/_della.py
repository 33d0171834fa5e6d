"""DELLA, with and without sign election: drop at random, small entries more often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.verbs.merge.methods._protocol import Operands
from transship.verbs.merge.methods._sparsify import Sparsifier, by_rank_and_chance, matching_norm
from transship.verbs.merge.methods._updates import UpdateMethod


@dataclass(frozen=True, kw_only=True)
class RankedDrop(UpdateMethod):
    """Drop entries at random, small ones of each row more often.

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

    def sparsifiers(self, operands: Operands) -> Sequence[Sparsifier]:
        """Return what drops entries by rank and chance."""
        inverse = self.rescale and self.rescale_by == "density"
        found = []
        for index, density in enumerate(operands.number("density")):
            epsilon = operands.number("epsilon")[index]
            kept = by_rank_and_chance(operands, index, density, epsilon, inverse=inverse)
            match = self.rescale and not inverse
            found.append(matching_norm(operands, index, kept, rows=True) if match else kept)
        return found
