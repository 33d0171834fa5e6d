"""Multi-task training: no merge, but what merges are measured against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional

from transship.errors import OptionError
from transship.numerics import derive_seed
from transship.verbs.merge.maths.descent import descend
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.maths.tasks import check_classes
from transship.verbs.merge.protocol import Joint, LearnedMethod, Learner


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
    held: ClassVar[tuple[float, float]] = (8.0, 1.0)
    needs_labels: ClassVar[bool] = True

    start: Literal["base", "average"] = "average"
    steps: int = 500
    learning_rate: float = 5e-5
    batch_size: int = 16

    def learn(self, joint: Joint) -> Vector:
        """Return θ − θ_0 after Adam on Σ_tasks cross-entropy."""
        tasks = [model.view() for model in joint.models]
        labels = [_labels(model, joint) for model in joint.models]
        weights = self._start(joint)

        def loss(place: int, rows: Sequence[int], outputs: Tensor) -> Tensor:
            return functional.cross_entropy(outputs, labels[place][list(rows)].to(outputs.device))

        draws = [
            task.draws(self.batch_size, derive_seed(joint.seed, "multitask", place))
            for place, task in enumerate(tasks)
        ]
        descend(
            list(weights.values()),
            lambda: weights,
            tasks,
            loss,
            draws=draws,
            rate=self.learning_rate,
            steps=self.steps,
            progress=joint.progress,
        )
        return {name: tensor.detach() - joint.base[name] for name, tensor in weights.items()}

    def _start(self, joint: Joint) -> Vector:
        updates = [model.update() for model in joint.models] if self.start == "average" else []
        weights = {}
        for name, tensor in joint.base.items():
            start = tensor.clone()
            for update in updates:
                start += update[name] / len(updates)
            weights[name] = start.requires_grad_()
        return weights


def _labels(model: Learner, joint: Joint) -> Tensor:
    """Return a task's classes, one for each input and within its head."""
    labels = model.labels()
    if labels is None:
        raise OptionError(
            "multitask trains on labels, and the data has no labels", where=model.name, fix="name them"
        )
    task = model.view()
    classes = check_classes(task, dict(joint.base), "multitask")
    if len(labels) != task.count or int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise OptionError(
            f"the data has label {int(labels.max())} in {len(labels)} rows, and the head {classes} classes "
            f"for {task.count} inputs",
            where=model.name,
            fix="give the data that the model was trained on",
        )
    return labels.long()
