"""What the methods share that learn from the entropy of predictions, without labels."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transship.numerics import derive_seed
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.descent import descend, entropy
from transship.verbs.merge.maths.states import State, Vector, numbers
from transship.verbs.merge.maths.tasks import check_classes
from transship.verbs.merge.protocol import Arrival, ContinualMethod, Joint, LearnedMethod, TaskView

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class EntropyMethod(LearnedMethod, ContinualMethod):
    """Merges updates by what makes predictions sure; one after another, the pair (τ_m, τ_t), on inputs of
    this task and of those kept of the one before.

    The loss is the sum over tasks of the mean entropy of the predictions that the merged backbone makes with
    each task's own head.

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
    def mix(
        self,
        base: Weights,
        updates: Sequence[Weights],
        tasks: Sequence[TaskView],
        seed: int = 0,
        progress: Progress = quiet,
    ) -> tuple[Vector, list[float]]:
        """Return the merged update and the entropy at each step."""

    def descend(
        self,
        learnt: Sequence[Tensor],
        build: Callable[[], Vector],
        tasks: Sequence[TaskView],
        seed: int,
        progress: Progress,
    ) -> list[float]:
        """Move `learnt` down the entropy of what `build` makes of it; return the loss of every step."""
        draws = [
            task.draws(self.batch_size, derive_seed(seed, "entropy", place, task.name))
            for place, task in enumerate(tasks)
        ]
        return descend(
            learnt,
            build,
            tasks,
            lambda place, rows, outputs: entropy(outputs),
            draws=draws,
            rate=self.learning_rate,
            steps=self.steps,
            progress=progress,
        )

    def learn(self, joint: Joint) -> Vector:
        """Return the merged update of all models together."""
        updates = [model.update() for model in joint.models]
        tasks = [model.view() for model in joint.models]
        return self.mix(joint.base, updates, tasks, joint.seed, joint.progress)[0]

    def first(self, arrival: Arrival) -> State:
        """Return the first update as it is, once its model is known to have classes."""
        self._check([arrival.incoming], arrival.tuned)
        return super().first(arrival)

    def add(self, state: State, arrival: Arrival) -> State:
        """Return the merged update, and the entropy before and after learning."""
        tasks = [task for task in (arrival.previous, arrival.incoming) if task is not None and task.count]
        merged, losses = self.mix(arrival.base, [state["merged"], arrival.update], tasks, arrival.seed)
        ends = {"entropy_first": losses[0], "entropy_last": losses[-1]} if losses else {}
        return {"merged": merged, "numbers": numbers(**ends)}

    def _check(self, tasks: Sequence[TaskView], weights: Weights) -> None:
        for task in tasks:
            check_classes(task, dict(weights), type(self).__name__.lower())
