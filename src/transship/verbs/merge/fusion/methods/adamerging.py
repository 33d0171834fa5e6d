"""AdaMerging on the merged vector and the one that arrives."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step, numbers
from transship.verbs.merge.learning.entropy import Descent, Granularity, learn_coefficients
from transship.verbs.merge.learning.needs import check_classes


@dataclass(frozen=True, kw_only=True)
class Adamerging(ContinualMethod):
    """Learn the coefficients of the merged and the new update that make predictions sure, without labels.

    Yang et al., "AdaMerging: Adaptive Model Merging for Multi-Task Learning": θ = θ_0 + Σ λ_k τ_k, λ by Adam
    on the entropy of the predictions. Continual: the pair (τ_m, τ_t), on inputs of this task and of those
    kept of the task before.

    Attributes:
        per: one coefficient for each update (`task`), or one for each of its tensors (`tensor`).
        start: where the coefficients begin.
        steps: of Adam.
        learning_rate: Adam's.
        batch_size: inputs of each task per step.
    """

    paper: ClassVar[str] = "Yang et al., 2024"
    needs_data: ClassVar[bool] = True
    replay: ClassVar[bool] = True
    copies: ClassVar[float] = 3.0

    per: Granularity = "tensor"
    start: float = 0.3
    steps: int = 1000
    learning_rate: float = 1e-3
    batch_size: int = 16

    def first(self, step: Step) -> State:
        """Return the first update as it is, once its model is known to have classes."""
        check_classes(step.incoming, step.tuned, "adamerging")
        return super().first(step)

    def add(self, state: State, step: Step) -> State:
        """Return λ_m τ_m + λ_t τ_t."""
        tasks = [task for task in (step.previous, step.incoming) if task is not None and task.count]
        updates = [state["merged"], step.update]
        descent = Descent(self.steps, self.learning_rate, self.batch_size, step.seed)
        found = learn_coefficients(step.base, updates, tasks, per=self.per, start=self.start, descent=descent)
        ends = {"entropy_first": found.losses[0], "entropy_last": found.losses[-1]} if found.losses else {}
        return {"merged": found.merged(updates), "numbers": numbers(**ends)}
