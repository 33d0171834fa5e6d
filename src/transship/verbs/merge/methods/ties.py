"""TIES: trim, elect signs, merge what agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.errors import OptionError
from transship.verbs.merge.methods._protocol import Operands, Survey
from transship.verbs.merge.methods._selection import kth_in_model
from transship.verbs.merge.methods._sparsify import Largest, Sparsifier, by_magnitude, matching_norm
from transship.verbs.merge.methods._updates import UpdateMethod


@dataclass(frozen=True, kw_only=True)
class Ties(UpdateMethod):
    """Keep the largest entries of each update, elect a sign for each entry, and average those that agree.

    Yadav et al., "TIES-Merging: Resolving Interference When Merging Models", Algorithm 1. Recipes trim each
    tensor by itself, as mergekit does; the paper trims over the whole model (`trim: global`).

    Attributes:
        trim: `tensor` keeps the share of each tensor, exactly, of equal magnitudes the lower index; `global`
            keeps it of the whole model and, as the paper's code, every entry at the threshold.
    """

    paper: ClassVar[str] = "Yadav et al., 2023"
    parity: ClassVar[bool] = True
    whole: ClassVar[int] = 1
    elect: ClassVar[bool] = True

    trim: Literal["tensor", "global"] = "tensor"
    normalize: bool = True

    @property
    def wants_survey(self) -> bool:
        """Return whether thresholds are taken over the whole model."""
        return self.trim == "global"

    def survey(self, tensors: Survey) -> list[float]:
        """Return each model's threshold: its ⌊density·n⌋-th largest magnitude in the whole model."""
        densities = _densities(tensors)
        return [kth_in_model(tensors, index, density) for index, density in enumerate(densities)]

    def sparsifiers(self, operands: Operands) -> Sequence[Sparsifier]:
        """Return what trims each update."""
        found: list[Sparsifier] = []
        for index, density in enumerate(operands.number("density")):
            if self.trim == "global":
                # all that equal the threshold stay: so the order of the tensors cannot matter
                kept: Sparsifier = Largest(operands.survey[index], places=1, ties=1)
            else:
                kept = by_magnitude(operands, index, density)
            found.append(matching_norm(operands, index, kept) if self.rescale else kept)
        return found


def _densities(tensors: Survey) -> list[float]:
    """Return each model's density, which has to be the same in all tensors."""
    found = {tuple(operands.number("density")) for operands in tensors()}
    if len(found) > 1:
        raise OptionError(
            "density differs between tensors", where="trim: global", fix="give one density, or trim: tensor"
        )
    return list(found.pop())
