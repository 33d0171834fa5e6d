"""DARE: drop at random and rescale, then add."""

from __future__ import annotations

from dataclasses import dataclass

from transship.verbs.merge.methods._dare import Dare


@dataclass(frozen=True, kw_only=True)
class DareLinear(Dare):
    """Drop entries of each update at random, enlarge the others, and add the rest.

    Yu et al., "Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch",
    Eq. (1). The paper divides by the density; recipes restore the L1 norm, as mergekit does.
    """
