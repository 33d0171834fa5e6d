"""Gradient descent on tasks: Adam, and the loop that takes one batch of every task in each step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from transship import parallel
from transship.errors import NumericalError
from transship.progress import Progress, quiet
from transship.verbs.merge.protocol import TaskView

# (place of the task, rows of its inputs, outputs for them) → the mean loss over them
Loss = Callable[[int, Sequence[int], Tensor], Tensor]


class Adam:
    """The update of Kingma and Ba, Algorithm 1, with torch's defaults; a tensor without a slope stays.

    torch.optim.Adam gives the same numbers, but its first use imports torch's compiler: four seconds of CPU
    time, more than most of the work here.
    """

    def __init__(self, tensors: Iterable[Tensor], rate: float) -> None:
        self.tensors, self.rate = list(tensors), rate
        self._first: dict[int, Tensor] = {}
        self._second: dict[int, Tensor] = {}
        self._steps: dict[int, int] = {}

    @torch.no_grad()
    def step(self, slopes: Sequence[Tensor | None]) -> None:
        """Move every tensor against its slope."""
        for place, (tensor, slope) in enumerate(zip(self.tensors, slopes, strict=True)):
            if slope is None:
                continue
            if place not in self._steps:
                self._steps[place] = 0
                self._first[place], self._second[place] = torch.zeros_like(tensor), torch.zeros_like(tensor)
            self._steps[place] += 1
            first = self._first[place].lerp_(slope, 0.1)
            second = self._second[place].mul_(0.999).addcmul_(slope, slope, value=0.001)
            size = second.sqrt().div_((1 - 0.999 ** self._steps[place]) ** 0.5).add_(1e-8)
            tensor.addcdiv_(first, size, value=-self.rate / (1 - 0.9 ** self._steps[place]))


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
        for tensor in learnt:
            tensor.grad = None
        with torch.enable_grad():
            backbone = build()
        loss, slopes = _slopes(backbone, tasks, loss_of, draws)
        if not loss < float("inf"):
            raise NumericalError(
                f"the loss became {loss} in step {step + 1}",
                where=", ".join(task.name for task in tasks),
                fix="choose a smaller learning rate",
            )
        names = [name for name in slopes if backbone[name].requires_grad]
        if names:
            torch.autograd.backward([backbone[name] for name in names], [slopes[name] for name in names])
        parallel.add_gradients(learnt)
        optimiser.step([tensor.grad for tensor in learnt])
        losses.append(loss)
        progress("learning", step + 1, steps)
    return losses


def _slopes(
    backbone: Mapping[str, Tensor],
    tasks: Sequence[TaskView],
    loss_of: Loss,
    draws: Sequence[Iterator[list[int]]],
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of the next batches over all processes, and this one's part of its derivative."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in backbone.items()}
    total, slopes = 0.0, dict[str, Tensor]()
    for place, (task, stream) in enumerate(zip(tasks, draws, strict=True)):
        rows = next(stream)
        own = list(parallel.share(rows))
        if not own:
            continue
        with torch.enable_grad():
            outputs = task.read(leaves, task.batch(own)).outputs
            assert outputs is not None, "the task's head was checked"
            # of the mean over the batch, this process's summands
            loss = loss_of(place, own, outputs) * (len(own) / len(rows))
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for name, slope in zip(leaves, gradients, strict=True):
            if slope is not None:
                slopes[name] = slopes[name] + slope if name in slopes else slope
        total += float(loss.detach())
    return sum(parallel.gather(total)), slopes


def entropy(logits: Float[Tensor, "inputs classes"]) -> Float[Tensor, ""]:
    """Return the mean over inputs of −Σ_c p log(p + 1e-8)."""
    chances = logits.softmax(-1)
    return -(chances * (chances + 1e-8).log()).sum(-1).mean()
