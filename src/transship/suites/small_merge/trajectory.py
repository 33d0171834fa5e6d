"""What a merged body is worth while models arrive: accuracy per step, task and kind of head."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transship.suites.small_merge.bodies import wide
from transship.suites.small_merge.heads import Known, fitted, label_heads
from transship.suites.small_merge.names import (
    CARRIED,
    FEW,
    HEADS,
    JOINT_HEADS,
    ONCE,
    PAPER,
    POLISHED,
    PRIORS,
    TUNED,
    WIDE,
    WIDE_POLISHED,
)
from transship.suites.small_merge.training import encode
from transship.verbs.merge.fusion.evaluate import Quality, StepReport, accuracy, quality, shift
from transship.verbs.merge.fusion.heads import HeadSettings, LinearHead, carry

REFRESHED = (TUNED, CARRIED, POLISHED)


@dataclass(frozen=True, eq=False)
class Arrival:
    """A fine-tuned model, its head, and the inputs that it brings.

    Attributes:
        name: of the task.
        model: its body.
        head: the head it was fine-tuned with.
        known: a quarter of its training inputs, with labels (for tuned heads only) and its own logits.
        test: inputs.
        test_labels: classes.
    """

    name: str
    model: nn.Module
    head: LinearHead
    known: Known
    test: Tensor
    test_labels: Tensor

    def accuracy(self, body: Callable[[Tensor], Tensor], head: LinearHead) -> float:
        """Return the accuracy of a head on a body's features of the test inputs."""
        return accuracy(head(encode(body, self.test)), self.test_labels)


def follow(
    arrivals: Sequence[Arrival],
    bodies: Iterable[nn.Module],
    *,
    every_step: bool = False,
    kinds: Sequence[str] = HEADS,
) -> dict[str, Quality]:
    """Return ACC, BWT and accuracies of the merged body along the arrivals, for every kind of head.

    Accuracies are measured when a task arrives and after the last step; at `every_step` on request. The
    paper's schedule tunes the head of the task before the newest one, once, and never the last one's.
    """
    kept: dict[str, dict[int, LinearHead]] = {PAPER: {}, ONCE: {}}
    history: list[StepReport] = []
    last = len(arrivals) - 1
    for step, body in enumerate(bodies):
        report = StepReport(step + 1, arrivals[step].name, {kind: {} for kind in kinds})
        if step > 0 and PAPER in kinds:
            before = arrivals[step - 1]
            features = encode(body, before.known.inputs)
            kept[PAPER][step - 1] = fitted(TUNED, features, before.known, before.head)
        for task in range(step + 1) if every_step or step == last else (step,):
            arrival = arrivals[task]
            features, test = encode(body, arrival.known.inputs), encode(body, arrival.test)
            if task == step and ONCE in kinds:
                kept[ONCE][task] = fitted(CARRIED, features, arrival.known, arrival.head)
            for kind in kinds:
                head = (
                    fitted(kind, features, arrival.known, arrival.head)
                    if kind in REFRESHED
                    else kept.get(kind, {}).get(task, arrival.head)
                )
                report.accuracy[kind][arrival.name] = accuracy(head(test), arrival.test_labels)
        history.append(report)
    names = [arrival.name for arrival in arrivals]
    found = {kind: quality(history, names, kind) for kind in kinds}
    return {kind: one for kind, one in found.items() if one is not None}


def final_accuracies(
    arrivals: Sequence[Arrival], body: nn.Module, kinds: Sequence[str] = JOINT_HEADS
) -> dict[str, float]:
    """Return the mean accuracy over tasks of a body that has no history, by kind of head."""
    sums = dict.fromkeys(kinds, 0.0)
    for arrival in arrivals:
        features, test = encode(body, arrival.known.inputs), encode(body, arrival.test)
        for kind in kinds:
            head = fitted(kind, features, arrival.known, arrival.head) if kind in REFRESHED else arrival.head
            sums[kind] += accuracy(head(test), arrival.test_labels) / len(arrivals)
    return sums


def label_head_accuracies(arrivals: Sequence[Arrival], body: nn.Module) -> dict[str, float]:
    """Return the mean accuracy over tasks of each head that labels can train on one body."""
    sums: dict[str, float] = {}
    for arrival in arrivals:
        features = encode(body, arrival.known.inputs)
        for name, head in label_heads(features, arrival.known, arrival.head).items():
            sums[name] = sums.get(name, 0.0) + arrival.accuracy(body, head) / len(arrivals)
    return sums


def wide_accuracies(arrivals: Sequence[Arrival], body: nn.Module) -> dict[str, float]:
    """Return the mean accuracy over tasks of heads carried onto features of several blocks."""
    sums: dict[str, float] = {}
    for arrival in arrivals:
        features = encode(wide(body), arrival.known.inputs)
        for name, kind in ((WIDE, CARRIED), (WIDE_POLISHED, POLISHED)):
            head = fitted(kind, features, arrival.known, arrival.head)
            sums[name] = sums.get(name, 0.0) + arrival.accuracy(wide(body), head) / len(arrivals)
    return sums


def few_accuracies(arrivals: Sequence[Arrival], body: nn.Module) -> dict[tuple[int | str, str], float]:
    """Return the mean accuracy of heads carried on few inputs, shrunk to zero or to the task's own head."""
    sums: dict[tuple[int | str, str], float] = {}
    for arrival in arrivals:
        features = encode(body, arrival.known.inputs)
        test = encode(body, arrival.test)
        for (label, count), (name, settings) in itertools.product(FEW.items(), PRIORS.items()):
            some, logits = features[:count], arrival.known.logits[:count]
            head = carry(some, logits, arrival.head, HeadSettings(**settings))
            found = accuracy(head(test), arrival.test_labels) / len(arrivals)
            sums[label, name] = sums.get((label, name), 0.0) + found
    return sums


def mean_shift(arrivals: Sequence[Arrival], body: nn.Module) -> tuple[float, float]:
    """Return the mean over tasks of Δ (Eqs. 1–2) and of the Sinkhorn divergence, on the tasks' inputs."""
    shifts = [
        shift(encode(body, arrival.known.inputs), encode(arrival.model, arrival.known.inputs))
        for arrival in arrivals
    ]
    mean = torch.tensor(shifts, dtype=torch.float64).mean(0)
    return float(mean[0]), float(mean[1])
