"""Concrete task arithmetic on the merged vector and the one that arrives."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step, numbers
from transship.verbs.merge.learning.entropy import Descent, learn_mask
from transship.verbs.merge.learning.needs import check_classes


@dataclass(frozen=True, kw_only=True)
class Concrete(ContinualMethod):
    """Learn one random mask for both updates that makes predictions sure, without labels.

    Tang et al., "Concrete Subspace Learning based Interference Elimination for Multi-task Model Fusion":
    θ = θ_0 + λ Σ M ⊙ τ_k, M a relaxed Bernoulli mask divided by its mean in each tensor. Continual: the pair
    (τ_m, τ_t). The final mask is a draw; ours is fixed by the seed.

    Attributes:
        scale: λ.
        temperature: of the relaxed Bernoulli masks.
        steps: of Adam.
        learning_rate: Adam's.
        batch_size: inputs of each task per step.
    """

    paper: ClassVar[str] = "Tang et al., 2023"
    needs_data: ClassVar[bool] = True
    replay: ClassVar[bool] = True
    copies: ClassVar[float] = 8.0

    scale: float = 0.3
    temperature: float = 0.5
    steps: int = 2000
    learning_rate: float = 1e-3
    batch_size: int = 16

    def first(self, step: Step) -> State:
        """Return the first update as it is, once its model is known to have classes."""
        check_classes(step.incoming, step.tuned, "concrete")
        return super().first(step)

    def add(self, state: State, step: Step) -> State:
        """Return λ M ⊙ (τ_m + τ_t)."""
        tasks = [task for task in (step.previous, step.incoming) if task is not None and task.count]
        updates = [state["merged"], step.update]
        descent = Descent(self.steps, self.learning_rate, self.batch_size, step.seed)
        found = learn_mask(
            step.base, updates, tasks, scale=self.scale, temperature=self.temperature, descent=descent
        )
        ends = {"entropy_first": found.losses[0], "entropy_last": found.losses[-1]} if found.losses else {}
        return {"merged": found.merged(updates), "numbers": numbers(**ends)}
