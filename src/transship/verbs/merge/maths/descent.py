"""Gradient descent on tasks: the loop that takes one batch of every task in each step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from jaxtyping import Float
from torch import Tensor

from transship import parallel
from transship.errors import NumericalError
from transship.finish.descent import Adam, follow_slope
from transship.progress import Progress, quiet
from transship.verbs.merge.protocol import TaskView

# (place of the task, rows of its inputs, outputs for them) → the mean loss over them
Loss = Callable[[int, Sequence[int], Tensor], Tensor]


def descend(
    learnt: Sequence[Tensor],
    build: Callable[[], Mapping[str, Tensor]],
    tasks: Sequence[TaskView],
    loss_of: Loss,
    *,
    draws: Sequence[Iterator[list[int]]],
    rate: float,
    steps: int,
    progress: Progress = quiet,
) -> list[float]:
    """Move `learnt` down the summed loss of what `build` makes of it; return the loss of every step.

    One task's graph is held at a time: the backbone's derivative is summed over tasks, then carried on to
    what is learnt. Processes share the rows of each batch.

    Args:
        learnt: leaves that require a derivative.
        build: makes the backbone of them.
        tasks: that are read with it, each before its own head.
        loss_of: the loss of one task's outputs.
        draws: the rows of each task's batches.
        rate: Adam's.
        steps: one batch of every task each.
        progress: is told how many steps are done.
    """
    optimiser = Adam(learnt, rate)
    losses = []
    for step in range(steps):
        summands = [
            partial(_summand, task, next(rows), partial(loss_of, place))
            for place, (task, rows) in enumerate(zip(tasks, draws, strict=True))
        ]
        loss = follow_slope(learnt, build, summands, optimiser)
        if not loss < float("inf"):
            raise NumericalError(
                f"the loss became {loss} in step {step + 1}",
                where=", ".join(task.name for task in tasks),
                fix="choose a smaller learning rate",
            )
        losses.append(loss)
        progress("learning", step + 1, steps)
    return losses


def _summand(
    task: TaskView,
    rows: Sequence[int],
    loss_of: Callable[[Sequence[int], Tensor], Tensor],
    backbone: Mapping[str, Tensor],
) -> Tensor | None:
    """Return, of the mean over a batch, this process's summands."""
    own = list(parallel.share(rows))
    if not own:
        return None
    outputs = task.read(backbone, task.batch(own)).outputs
    assert outputs is not None, "the task's head was checked"
    return loss_of(own, outputs) * (len(own) / len(rows))


def entropy(logits: Float[Tensor, "inputs classes"]) -> Float[Tensor, ""]:
    """Return the mean over inputs of −Σ_c p log(p + 1e-8)."""
    chances = logits.softmax(-1)
    return -(chances * (chances + 1e-8).log()).sum(-1).mean()
