"""AdaMerging: coefficients learnt without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from transship.verbs.merge.methods._learned import LearnedMethod, Occasion

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Adamerging(LearnedMethod):
    """Learn the coefficient of each update that makes predictions sure, without labels.

    Yang et al., "AdaMerging: Adaptive Model Merging for Multi-Task Learning": θ = θ_0 + Σ λ_k τ_k, λ by Adam
    on the sum over tasks of the entropy of the predictions with each task's own head.

    Attributes:
        per: one coefficient for each model (`task`), or one for each of its tensors (`tensor`; the paper's
            layer-wise form).
        start: where the coefficients begin.
        steps: of Adam.
        learning_rate: Adam's.
        batch_size: inputs of each task per step.
    """

    paper: ClassVar[str] = "Yang et al., 2024"
    copies: ClassVar[tuple[float, float]] = (4.0, 2.0)

    per: Literal["task", "tensor"] = "tensor"
    start: float = 0.3
    steps: int = 1000
    learning_rate: float = 1e-3
    batch_size: int = 16

    def learn(self, occasion: Occasion) -> dict[str, Tensor]:
        """Return Σ λ_k τ_k."""
        from transship.verbs.merge.learning.entropy import Descent, learn_coefficients

        updates = [model.update() for model in occasion.models]
        tasks = [model.seen() for model in occasion.models]
        descent = Descent(self.steps, self.learning_rate, self.batch_size, occasion.seed, occasion.watch)
        found = learn_coefficients(
            occasion.base, updates, tasks, per=self.per, start=self.start, descent=descent
        )
        return found.merged(updates)
