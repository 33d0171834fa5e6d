"""DARE: drop at random and rescale, with TIES sign election."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.methods.dare_linear import DareLinear


@dataclass(frozen=True, kw_only=True)
class DareTies(DareLinear):
    """Drop entries of each update at random, enlarge the others, and merge those of the elected sign.

    Yu et al., "Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch",
    Eq. (1), with the sign election of TIES. The paper divides by the density; recipes restore the L1 norm,
    as mergekit does.
    """

    elect: ClassVar[bool] = True
