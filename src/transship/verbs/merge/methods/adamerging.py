"""AdaMerging: coefficients learnt without labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from transship.progress import Progress, quiet
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.methods._entropy import EntropyMethod, Weights
from transship.verbs.merge.protocol import TaskView


@dataclass(frozen=True, kw_only=True)
class Adamerging(EntropyMethod):
    """Learn the coefficient of each update that makes predictions sure, without labels.

    Yang et al., "AdaMerging: Adaptive Model Merging for Multi-Task Learning": θ = θ_0 + Σ λ_k τ_k, λ by Adam
    on the sum over tasks of the entropy of the predictions with each task's own head. One after another, the
    pair (τ_m, τ_t), on inputs of this task and of those kept of the task before.

    Attributes:
        per: one coefficient for each update (`task`), or one for each of its tensors (`tensor`; the paper's
            layer-wise form).
        start: where the coefficients begin.
    """

    paper: ClassVar[str] = "Yang et al., 2024"
    held: ClassVar[tuple[float, float]] = (4.0, 2.0)
    copies: ClassVar[float] = 3.0

    per: Literal["task", "tensor"] = "tensor"
    start: float = 0.3

    def mix(
        self,
        base: Weights,
        updates: Sequence[Weights],
        tasks: Sequence[TaskView],
        seed: int = 0,
        progress: Progress = quiet,
    ) -> tuple[Vector, list[float]]:
        """Return Σ λ_k τ_k, and the loss of every step."""
        self._check(tasks, base)
        shared = torch.full((len(updates),), self.start, requires_grad=True)
        factors = {name: shared if self.per == "task" else shared.detach().clone() for name in base}
        learnt = [shared] if self.per == "task" else [each.requires_grad_() for each in factors.values()]

        def mixture() -> Vector:
            names = updates[0].keys()
            return {
                name: _weighted_sum(factors[name], [update[name] for update in updates]) for name in names
            }

        def build() -> Vector:
            return {name: base[name] + change for name, change in mixture().items()}

        losses = self.descend(learnt, build, tasks, seed, progress)
        with torch.no_grad():
            return mixture(), losses


def _weighted_sum(factors: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    total = factors[0] * tensors[0]
    for place in range(1, len(tensors)):
        total = total + factors[place] * tensors[place]
    return total
