"""Concrete task arithmetic: one mask for all updates, learnt without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from transship.verbs.merge.methods._learned import LearnedMethod, Occasion

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Concrete(LearnedMethod):
    """Learn one random mask for all updates that makes predictions sure, without labels.

    Tang et al., "Concrete Subspace Learning based Interference Elimination for Multi-task Model Fusion":
    θ = θ_0 + λ Σ M ⊙ τ_k, M a relaxed Bernoulli mask divided by its mean in each tensor. The final mask is a
    draw; ours is fixed by the seed.

    Attributes:
        scale: λ (`lambda` in recipes).
        temperature: of the relaxed Bernoulli masks.
        steps: of Adam.
        learning_rate: Adam's.
        batch_size: inputs of each task per step.
    """

    paper: ClassVar[str] = "Tang et al., 2023"
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    copies: ClassVar[tuple[float, float]] = (10.0, 2.0)

    scale: float = 0.3
    temperature: float = 0.5
    steps: int = 2000
    learning_rate: float = 1e-3
    batch_size: int = 16

    def learn(self, occasion: Occasion) -> dict[str, Tensor]:
        """Return λ Σ M ⊙ τ_k."""
        from transship.verbs.merge.learning.entropy import Descent, learn_mask

        updates = [model.update() for model in occasion.models]
        tasks = [model.seen() for model in occasion.models]
        descent = Descent(self.steps, self.learning_rate, self.batch_size, occasion.seed, occasion.watch)
        found = learn_mask(
            occasion.base, updates, tasks, scale=self.scale, temperature=self.temperature, descent=descent
        )
        return found.merged(updates)
