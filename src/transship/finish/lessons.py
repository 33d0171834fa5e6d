"""A lesson: inputs, what a teacher says of them, and how far a student is from that.

No label is read. A student that reads a part of the inputs is judged on the rest of the same lesson.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from transship.numerics import derive_seed

Weights = Mapping[str, Tensor]
# (weights, rows of the inputs) → the student's outputs under these weights, and the teacher's
Read = Callable[[Weights, Sequence[int]], tuple[Tensor, Tensor]]
Distance = Callable[[Tensor, Tensor], Tensor]
# fewer inputs cannot spare any to judge by
LEAST = 16
MOST_HELD_OUT = 400


@dataclass(frozen=True, eq=False)
class Lesson:
    """Inputs that a student learns from.

    Attributes:
        name: unique among the lessons of a finish.
        count: inputs.
        read: what the student and the teacher say of some of them, row by row.
        distance: the mean loss of the student's rows against the teacher's.
        weight: in the loss.
    """

    name: str
    count: int
    read: Read
    distance: Distance
    weight: float = 1.0

    def loss(self, weights: Weights, rows: Sequence[int]) -> Float[Tensor, ""]:
        """Return the mean loss over some inputs, times the weight; differentiable in the weights."""
        outputs, wanted = self.read(weights, rows)
        return self.weight * self.distance(outputs, wanted.to(outputs))

    def parts(self, share: float, seed: int) -> tuple[list[int], list[int]]:
        """Return the rows to learn from and those to be judged by; few rows serve as both."""
        order = _permuted(self.count, seed, self.name, "held out")
        if self.count < LEAST or share <= 0:
            return order, order
        judged = min(MOST_HELD_OUT, max(1, round(share * self.count)))
        return order[judged:], order[:judged]


def batch_of(rows: Sequence[int], size: int, step: int, seed: int, name: str) -> list[int]:
    """Return the rows of one step: a new order in every pass, the same for the same step and seed."""
    size = min(size, len(rows))
    passes, place = divmod(step, max(1, len(rows) // size))
    order = _permuted(len(rows), seed, name, "pass", passes)
    return [rows[number] for number in order[place * size : (place + 1) * size]]


def _permuted(count: int, seed: int, *purpose: object) -> list[int]:
    draws = np.random.default_rng(derive_seed(seed, "finish", *purpose))
    return [int(row) for row in draws.permutation(count)]


def divergence(outputs: Float[Tensor, "rows classes"], wanted: Float[Tensor, "rows classes"]) -> Tensor:
    """Return the mean of KL(softmax(wanted) ‖ softmax(outputs))."""
    return functional.kl_div(
        outputs.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True
    )


def squared_error(scale: float) -> Distance:
    """Return the mean squared error over `scale`, the variance of what the teacher says."""

    def distance(outputs: Float[Tensor, "rows width"], wanted: Float[Tensor, "rows width"]) -> Tensor:
        return (outputs - wanted).square().mean() / max(scale, 1e-12)

    return distance


def neighbours(outputs: Float[Tensor, "rows width_b"], wanted: Float[Tensor, "rows width_a"]) -> Tensor:
    """Return the mean squared difference of the cosines between rows: features of two widths, whose axes mean
    nothing to one another.
    """
    sides = [functional.normalize(rows, dim=1) for rows in (outputs, wanted)]
    here, there = (rows @ rows.T for rows in sides)
    apart = ~torch.eye(len(here), dtype=torch.bool, device=here.device)
    if not bool(apart.any()):
        return here.sum() * 0.0
    return (here - there)[apart].square().mean() / there[apart].var(correction=0).clamp_min(1e-6)


def most_likely(logits: Float[Tensor, "*rows words"], count: int) -> Float[Tensor, "*rows pairs"]:
    """Return [..., 2 · count]: the numbers of the most likely words, then their log-probabilities."""
    chances, words = logits.float().log_softmax(-1).topk(min(count, logits.shape[-1]), dim=-1)
    return torch.cat([words.to(chances), chances], -1)


def divergence_of_likely(outputs: Float[Tensor, "rows words"], wanted: Float[Tensor, "rows pairs"]) -> Tensor:
    """Return the mean divergence over what `most_likely` keeps, all other words counted as one."""
    count = wanted.shape[1] // 2
    words, teacher = wanted[:, :count].long(), wanted[:, count:]
    student = outputs.log_softmax(-1).gather(1, words)
    rest = [(1 - side.exp().sum(-1, keepdim=True)).clamp_min(1e-6).log() for side in (student, teacher)]
    sides = [torch.cat([side, other], 1) for side, other in zip((student, teacher), rest, strict=True)]
    return (sides[1].exp() * (sides[1] - sides[0])).sum(1).mean()
