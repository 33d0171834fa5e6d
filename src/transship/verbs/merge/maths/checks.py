"""What a method must know of a task before it starts: inputs, and a head with classes."""

from typing import Any

import torch
from torch import Tensor

from transship.errors import DataError, NumericalError, OptionError
from transship.verbs.merge.protocol import Seen


def check_inputs(seen: Seen, method: str) -> None:
    """Refuse a task without inputs."""
    if not seen.count:
        raise DataError(
            f"{method} reads inputs of this task and has none", where=seen.name, fix="give it data"
        )


def check_classes(seen: Seen, backbone: dict[str, Tensor], method: str) -> int:
    """Return how many classes a task's own head has; refuse bare models, a single class, and NaN."""
    check_inputs(seen, method)
    with torch.no_grad():
        outputs = seen.read(backbone, seen.batch(range(min(2, seen.count)))).outputs
    classes = class_logits(outputs, seen, method)
    if not torch.isfinite(classes).all():
        raise NumericalError(
            "the model's outputs hold a NaN or an infinity", where=seen.name, fix="check its weights"
        )
    return int(classes.shape[1])


def class_logits(outputs: Any, seen: Seen, method: str) -> Tensor:
    """Return a head's outputs where they are logits of at least two classes."""
    if not isinstance(outputs, Tensor):
        raise OptionError(
            f"{method} needs the logits of a classifier, and this model has no head",
            where=seen.name,
            fix="choose regmean, or give the fine-tune with its head",
        )
    if outputs.shape[1] < 2:
        raise OptionError(
            f"{method} needs at least two classes, and the head has {outputs.shape[1]}",
            where=seen.name,
            fix="choose regmean, which needs no classes",
        )
    return outputs
