"""DELLA: drop at random, small entries more often, with sign election."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.methods.della_linear import DellaLinear


@dataclass(frozen=True, kw_only=True)
class Della(DellaLinear):
    """Drop entries at random, small ones of each row more often, and merge those of the elected sign.

    Deep et al., "DELLA-Merging: Reducing Interference in Model Merging through Magnitude-Based Sampling": an
    entry of rank r ∈ [0, 1] in its row is kept with probability density − ε + 2 ε r. The paper divides each
    kept entry by its probability; recipes restore the L1 norm of the tensor, as mergekit does.
    """

    elect: ClassVar[bool] = True

    normalize: bool = True
