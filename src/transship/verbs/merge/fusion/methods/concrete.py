"""Concrete task arithmetic on the merged vector and the one that arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.fusion.methods._entropy import EntropyMethod, Weights
from transship.verbs.merge.fusion.protocol import Seen, Vector
from transship.verbs.merge.learning.entropy import Descent, learn_mask


@dataclass(frozen=True, kw_only=True)
class Concrete(EntropyMethod):
    """Learn one random mask for both updates that makes predictions sure, without labels.

    Tang et al., "Concrete Subspace Learning based Interference Elimination for Multi-task Model Fusion":
    θ = θ_0 + λ Σ M ⊙ τ_k, M a relaxed Bernoulli mask divided by its mean in each tensor. Continual: the pair
    (τ_m, τ_t). The final mask is a draw; ours is fixed by the seed.

    Attributes:
        scale: λ.
        temperature: of the relaxed Bernoulli masks.
        steps: of Adam.
    """

    paper: ClassVar[str] = "Tang et al., 2023"
    copies: ClassVar[float] = 8.0

    scale: float = 0.3
    temperature: float = 0.5
    steps: int = 2000

    def learned(
        self, base: Weights, updates: Sequence[Weights], tasks: Sequence[Seen], descent: Descent
    ) -> tuple[Vector, Sequence[float]]:
        """Return λ M ⊙ (τ_m + τ_t)."""
        found = learn_mask(
            base, updates, tasks, scale=self.scale, temperature=self.temperature, descent=descent
        )
        return found.merged(updates), found.losses
