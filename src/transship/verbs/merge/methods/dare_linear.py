"""DARE: drop at random and rescale, then add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.verbs.merge.maths.sparsify import Rescaled, Sparsifier, by_chance, matching_norm
from transship.verbs.merge.methods._updates import UpdateMethod
from transship.verbs.merge.protocol import Operands


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

    def sparsifiers(self, operands: Operands) -> Sequence[Sparsifier]:
        """Return what drops entries by chance."""
        sparsifiers = []
        for index, density in enumerate(operands.number("density")):
            kept = by_chance(operands, index, density)
            if self.rescale and self.rescale_by == "norm":
                kept = matching_norm(operands, index, kept)
            elif self.rescale and 0 < density < 1:
                kept = Rescaled(kept, 1 / density)
            sparsifiers.append(kept)
        return sparsifiers
