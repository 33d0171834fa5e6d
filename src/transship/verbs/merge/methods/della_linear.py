"""DELLA: drop at random, small entries more often, then add."""

from __future__ import annotations

from dataclasses import dataclass

from transship.verbs.merge.methods._della import RankedDrop


@dataclass(frozen=True, kw_only=True)
class DellaLinear(RankedDrop):
    """Drop entries at random, small ones of each row more often, and add the rest.

    Deep et al., "DELLA-Merging: Reducing Interference in Model Merging through Magnitude-Based Sampling": an
    entry of rank r ∈ [0, 1] in its row is kept with probability density − ε + 2 ε r. The paper divides each
    kept entry by its probability; recipes restore the L1 norm of the tensor, as mergekit does.
    """
