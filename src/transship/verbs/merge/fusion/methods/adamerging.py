"""AdaMerging on the merged vector and the one that arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.fusion.methods._entropy import EntropyMethod, Weights
from transship.verbs.merge.fusion.protocol import Seen, Vector
from transship.verbs.merge.learning.entropy import Descent, Granularity, learn_coefficients


@dataclass(frozen=True, kw_only=True)
class Adamerging(EntropyMethod):
    """Learn the coefficients of the merged and the new update that make predictions sure, without labels.

    Yang et al., "AdaMerging: Adaptive Model Merging for Multi-Task Learning": θ = θ_0 + Σ λ_k τ_k, λ by Adam
    on the entropy of the predictions. Continual: the pair (τ_m, τ_t), on inputs of this task and of those
    kept of the task before.

    Attributes:
        per: one coefficient for each update (`task`), or one for each of its tensors (`tensor`).
        start: where the coefficients begin.
    """

    paper: ClassVar[str] = "Yang et al., 2024"
    copies: ClassVar[float] = 3.0

    per: Granularity = "tensor"
    start: float = 0.3

    def learned(
        self, base: Weights, updates: Sequence[Weights], tasks: Sequence[Seen], descent: Descent
    ) -> tuple[Vector, Sequence[float]]:
        """Return λ_m τ_m + λ_t τ_t."""
        found = learn_coefficients(base, updates, tasks, per=self.per, start=self.start, descent=descent)
        return found.merged(updates), found.losses
