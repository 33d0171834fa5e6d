"""AdaMerging: coefficients learnt without labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from transship.verbs.merge.maths.checks import check_classes
from transship.verbs.merge.maths.entropy import Descent
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.methods._entropy import EntropyMethod, Weights
from transship.verbs.merge.protocol import Seen

Granularity = Literal["task", "tensor"]


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

    per: Granularity = "tensor"
    start: float = 0.3

    def learned(
        self, base: Weights, updates: Sequence[Weights], tasks: Sequence[Seen], descent: Descent
    ) -> tuple[Vector, Sequence[float]]:
        """Return Σ λ_k τ_k."""
        coefficients = learn_coefficients(
            base, updates, tasks, per=self.per, start=self.start, descent=descent
        )
        return coefficients.merged(updates), coefficients.losses


@dataclass(frozen=True)
class Coefficients:
    """AdaMerging's λ: one number for each update, or one for each update and tensor.

    Attributes:
        values: `{"": [updates]}`, or tensor name → [updates].
        losses: of every step.
    """

    values: dict[str, Float[Tensor, " updates"]]
    losses: list[float]

    def of(self, name: str) -> Float[Tensor, " updates"]:
        """Return the coefficients of one tensor."""
        return self.values.get(name, self.values.get("", torch.empty(0)))

    def merged(self, updates: Sequence[Mapping[str, Tensor]]) -> Vector:
        """Return Σ_k λ_k τ_k."""
        return mixed(self.of, updates)


def mixed(of: Callable[[str], Tensor], updates: Sequence[Mapping[str, Tensor]]) -> Vector:
    """Return Σ_k λ_k τ_k, with the coefficients that `of` gives for a tensor."""
    mixture = {}
    for name in updates[0]:
        values = of(name)
        total = values[0] * updates[0][name]
        for place in range(1, len(updates)):
            total = total + values[place] * updates[place][name]
        mixture[name] = total
    return mixture


def learn_coefficients(
    base: Mapping[str, Tensor],
    updates: Sequence[Mapping[str, Tensor]],
    tasks: Sequence[Seen],
    *,
    per: Granularity = "tensor",
    start: float = 0.3,
    descent: Descent | None = None,
) -> Coefficients:
    """Return AdaMerging's coefficients: θ = θ_0 + Σ_k λ_k τ_k of least entropy on the tasks' inputs."""
    for task in tasks:
        check_classes(task, dict(base), "adamerging")
    names = [""] if per == "task" else list(base)
    values = {name: torch.full((len(updates),), start, requires_grad=True) for name in names}
    shared = values.get("")

    def of(name: str) -> Tensor:
        return values[name] if shared is None else shared

    def build() -> Vector:
        return {name: base[name] + change for name, change in mixed(of, updates).items()}

    losses = (descent or Descent()).minimise(list(values.values()), build, tasks)
    return Coefficients({name: value.detach() for name, value in values.items()}, losses)
