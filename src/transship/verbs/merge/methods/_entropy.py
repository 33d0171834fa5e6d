"""What the methods share that learn from the entropy of predictions, without labels."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transship.verbs.merge.maths.checks import check_classes
from transship.verbs.merge.maths.entropy import Descent
from transship.verbs.merge.maths.states import State, Vector, numbers
from transship.verbs.merge.protocol import Arrival, ContinualMethod, Joint, LearnedMethod, Seen

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class EntropyMethod(LearnedMethod, ContinualMethod):
    """Merges updates by what makes predictions sure; one after another, the pair (τ_m, τ_t), on inputs of
    this task and of those kept of the one before.

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

    def learn(self, joint: Joint) -> Vector:
        """Return the merged update of all models together."""
        updates = [model.update() for model in joint.models]
        tasks = [model.seen() for model in joint.models]
        descent = Descent(self.steps, self.learning_rate, self.batch_size, joint.seed, joint.progress)
        return self.learned(joint.base, updates, tasks, descent)[0]

    def first(self, arrival: Arrival) -> State:
        """Return the first update as it is, once its model is known to have classes."""
        check_classes(arrival.incoming, arrival.tuned, type(self).__name__.lower())
        return super().first(arrival)

    def add(self, state: State, arrival: Arrival) -> State:
        """Return the merged update, and the entropy before and after learning."""
        tasks = [task for task in (arrival.previous, arrival.incoming) if task is not None and task.count]
        descent = Descent(self.steps, self.learning_rate, self.batch_size, arrival.seed)
        merged, losses = self.learned(arrival.base, [state["merged"], arrival.update], tasks, descent)
        ends = {"entropy_first": losses[0], "entropy_last": losses[-1]} if losses else {}
        return {"merged": merged, "numbers": numbers(**ends)}
