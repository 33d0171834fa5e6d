"""What a finish costs, before it starts: CPU seconds and memory, from one timed step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from transship.finish.learn import CHECKS
from transship.finish.lessons import Lesson, Weights
from transship.finish.settings import Finish
from transship.numerics import format_bytes
from transship.progress import duration

_TIMED = 4  # inputs: enough to see what one costs


@dataclass(frozen=True)
class FinishCost:
    """An estimate.

    Attributes:
        steps: with those of trials.
        seconds: of CPU time.
        memory: bytes beside the models.
    """

    steps: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        return (
            f"{self.steps} steps at most, about {duration(self.seconds)} of CPU time, "
            f"{format_bytes(self.memory)} of memory"
        )


def estimate(lessons: Sequence[Lesson], weights: Weights, learnt: int, settings: Finish) -> FinishCost:
    """Return what a finish takes at most.

    Args:
        lessons: of which the first is timed on a few inputs.
        weights: of the student at its start.
        learnt: numbers that are learnt.
        settings: its steps and batches.
    """
    whole = 4 * sum(tensor.numel() for tensor in weights.values())
    # the weights as they are built, their slopes; what is learnt, its slopes, two moments, the best so far
    memory = 2 * whole + 5 * 4 * learnt
    per_step = settings.batch_size * min(settings.lessons or len(lessons), len(lessons))
    runs = settings.most_steps / max(1, settings.steps)
    judged = sum(len(lesson.parts(settings.held_out, settings.seed)[1]) for lesson in lessons)
    # a step runs backward too, which is twice forward
    inputs = 3 * per_step * settings.most_steps + (1 + CHECKS * runs) * judged
    return FinishCost(settings.most_steps, inputs * _seconds_per_input(lessons[0], weights), memory)


def _seconds_per_input(lesson: Lesson, weights: Weights) -> float:
    rows = list(range(min(_TIMED, lesson.count)))
    with torch.no_grad():
        lesson.loss(weights, rows)  # the first pass warms up
        start = time.process_time()
        lesson.loss(weights, rows)
    return (time.process_time() - start) / max(1, len(rows))
