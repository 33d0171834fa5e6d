"""DARE: drop at random and rescale, then add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.maths.updates import Rescaled, Sparsifier, by_chance
from transship.verbs.merge.methods._updates import UpdateMethod


@dataclass(frozen=True, kw_only=True)
class DareLinear(UpdateMethod):
    """Drop entries of each update at random, enlarge the others, and add the rest.

    Yu et al., "Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch",
    Eq. (1). The paper divides by the density; recipes restore the L1 norm, as mergekit does.

    Attributes:
        density: the probability with which an entry is kept.
        rescale: enlarge what is kept, to make up for what was dropped.
        rescale_by: `norm` restores the L1 norm of each tensor, as mergekit does; `density` divides by the
            density, as the paper does.
    """

    paper: ClassVar[str] = "Yu et al., 2024"
    parity: ClassVar[bool] = True

    rescale: bool = True
    rescale_by: Literal["norm", "density"] = "norm"

    @property
    def restores_norm(self) -> bool:
        """Whether what is kept is enlarged until the L1 norm is as before."""
        return self.rescale and self.rescale_by == "norm"

    def sparsifier(self, operands: Operands, index: int) -> Sparsifier:
        density = operands.number("density")[index]
        kept = by_chance(operands, index, density)
        divided = self.rescale and self.rescale_by == "density" and 0 < density < 1
        return Rescaled(kept, 1 / density) if divided else kept
