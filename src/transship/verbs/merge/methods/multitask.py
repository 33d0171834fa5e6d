"""Multi-task training: no merge, but what merges are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from transship.verbs.merge.methods._learned import LearnedMethod, Occasion

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Multitask(LearnedMethod):
    """Train one backbone on the labelled data of all tasks: the reference that merges try to reach.

    Traditional multi-task learning, with each task's own head as it came: θ by Adam on the sum over tasks of
    the cross-entropy. It needs labels and training, which merging does without.

    Attributes:
        start: where training begins: at the `base`, or at the `average` of the models.
        steps: one batch of every task each.
        learning_rate: Adam's.
        batch_size: inputs of each task per step.
    """

    paper: ClassVar[str] = "Caruana, 1997"
    copies: ClassVar[tuple[float, float]] = (8.0, 1.0)
    needs_labels: ClassVar[bool] = True

    start: Literal["base", "average"] = "average"
    steps: int = 500
    learning_rate: float = 5e-5
    batch_size: int = 16

    def learn(self, occasion: Occasion) -> dict[str, Tensor]:
        """Return the trained update."""
        from transship.verbs.merge.learning.multitask import train

        return train(
            occasion, self.steps, self.learning_rate, self.batch_size, average=self.start == "average"
        )
