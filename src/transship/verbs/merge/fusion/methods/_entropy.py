"""What the methods share that learn from the entropy of predictions, without labels."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transship.verbs.merge.fusion.protocol import ContinualMethod, Seen, State, Step, Vector, numbers
from transship.verbs.merge.learning.entropy import Descent
from transship.verbs.merge.learning.needs import check_classes

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class EntropyMethod(ContinualMethod):
    """Merges (τ_m, τ_t) by what makes predictions sure, on inputs of this task and of the one before.

    Attributes:
        steps: of Adam.
        learning_rate: Adam's.
        batch_size: inputs of each task per step.
    """

    needs_data: ClassVar[bool] = True
    replay: ClassVar[bool] = True

    steps: int = 1000
    learning_rate: float = 1e-3
    batch_size: int = 16

    @abstractmethod
    def learned(
        self, base: Weights, updates: Sequence[Weights], tasks: Sequence[Seen], descent: Descent
    ) -> tuple[Vector, Sequence[float]]:
        """Return the merged update and the entropy at each step."""

    def first(self, step: Step) -> State:
        """Return the first update as it is, once its model is known to have classes."""
        check_classes(step.incoming, step.tuned, type(self).__name__.lower())
        return super().first(step)

    def add(self, state: State, step: Step) -> State:
        """Return the merged update, and the entropy before and after learning."""
        tasks = [task for task in (step.previous, step.incoming) if task is not None and task.count]
        descent = Descent(self.steps, self.learning_rate, self.batch_size, step.seed)
        merged, losses = self.learned(step.base, [state["merged"], step.update], tasks, descent)
        ends = {"entropy_first": losses[0], "entropy_last": losses[-1]} if losses else {}
        return {"merged": merged, "numbers": numbers(**ends)}
