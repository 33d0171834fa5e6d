"""What methods ask of the tasks that they read: inputs, a head with classes, and sums over all models."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from transship.errors import DataError, NumericalError, OptionError
from transship.verbs.merge.maths.states import State, combined
from transship.verbs.merge.protocol import Joint, TaskView

# (task, its weights, its update, its share) → its sums
Taken = Callable[[TaskView, Mapping[str, Tensor], Mapping[str, Tensor], float], State]


def check_inputs(task: TaskView, method: str) -> None:
    """Refuse a task without inputs."""
    if not task.count:
        raise DataError(
            f"{method} reads inputs of this task and has none", where=task.name, fix="give it data"
        )


def check_classes(task: TaskView, backbone: dict[str, Tensor], method: str) -> int:
    """Return how many classes a task's own head has; refuse bare models, a single class, and NaN."""
    check_inputs(task, method)
    with torch.no_grad():
        outputs = task.read(backbone, task.batch(range(min(2, task.count)))).outputs
    classes = class_logits(outputs, task, method)
    if not torch.isfinite(classes).all():
        raise NumericalError(
            "the model's outputs hold a NaN or an infinity", where=task.name, fix="check its weights"
        )
    return int(classes.shape[1])


def class_logits(outputs: Any, task: TaskView, method: str) -> Tensor:
    """Return a head's outputs where they are logits of at least two classes."""
    if not isinstance(outputs, Tensor):
        raise OptionError(
            f"{method} needs the logits of a classifier, and this model has no head",
            where=task.name,
            fix="choose regmean, or give the fine-tune with its head",
        )
    if outputs.shape[1] < 2:
        raise OptionError(
            f"{method} needs at least two classes, and the head has {outputs.shape[1]}",
            where=task.name,
            fix="choose regmean, which needs no classes",
        )
    return outputs


def summed(joint: Joint, taken: Taken) -> State:
    """Return the sum of all models' statistics; models are opened one after another."""
    shares = joint.values.get("weight", [1.0] * len(joint.models))
    sums: State | None = None
    for place, (model, share) in enumerate(zip(joint.models, shares, strict=True)):
        joint.progress("reading models", place, len(joint.models))
        update = model.update()
        tuned = {name: joint.base[name] + change for name, change in update.items()}
        state = taken(model.view(), tuned, update, float(share))
        sums = state if sums is None else combined(sums, state)
        model.close()
    joint.progress("reading models", len(joint.models), len(joint.models))
    return sums or {}
