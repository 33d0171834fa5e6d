"""RegMean: linear maps by least squares on their own inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from transship.verbs.merge.methods._learned import LearnedMethod, Occasion

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Regmean(LearnedMethod):
    """Give each linear map the least squared distance to what all models make of their own inputs.

    Jin et al., "Dataless Knowledge Fusion by Merging Weights of Language Models":
    W = (Σ c_i G_i)⁻¹ Σ c_i G_i W_i with G_i = XᵀX / tokens of what enters the map in model i. A 1 is appended
    to X, so that biases are solved for; maps that read the same tensor share G; all other tensors are
    averaged.

    Attributes:
        weight: c_i.
        keep: the factor of the off-diagonals of G_i (the paper's α; FusionBench has 0.95).
        ridge: share of the mean diagonal of G_i that is added to it.
        batch_size: inputs per forward pass.
    """

    paper: ClassVar[str] = "Jin et al., 2023"
    per_model: ClassVar[tuple[str, ...]] = ("weight",)
    copies: ClassVar[tuple[float, float]] = (14.0, 0.0)

    weight: float = 1.0
    keep: float = 0.9
    ridge: float = 1e-6
    batch_size: int = 16

    def learn(self, occasion: Occasion) -> dict[str, Tensor]:
        """Return (Σ c_i G_i)⁻¹ Σ c_i G_i τ_i for linear maps, and the mean of the others."""
        from transship.verbs.merge.learning.joint import summed
        from transship.verbs.merge.learning.regmean import RegMeanSums, merged_update

        sums = RegMeanSums(self.keep, self.ridge, None, self.batch_size)
        return merged_update(summed(occasion, sums.taken), occasion.models[0].seen())
