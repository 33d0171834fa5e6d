"""The finish of a fusion: merged backbone and heads learn what each task's own model said of its kept inputs.

Nothing earlier is needed: inputs and answers lie in the fusion, so that what is in memory does not grow with
the models. Heads begin as they are fitted on the inputs that the finish learns from, so that those which say
when to stop are new to them as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor
from torch.nn import functional

from transship.finish import Finish, Finished, Lesson, Weights, divergence, estimate, finish, squared_error
from transship.progress import Progress, quiet
from transship.verbs.merge.fusion.choices import Choices
from transship.verbs.merge.fusion.refresh import fit_head
from transship.verbs.merge.fusion.task import FusedTask, Kept
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.tasks.heads import FINISHED, HeadKind, LinearHead
from transship.verbs.merge.tasks.model import TaskModel, take

LEAST = 2  # inputs that a task must have kept to be learnt from


@dataclass(frozen=True, eq=False)
class Taught:
    """A task that a finish learns.

    Attributes:
        task: its place in the fusion.
        model: over its kept inputs.
        kept: with the answers of its own model.
    """

    task: FusedTask
    model: TaskModel
    kept: Kept

    @property
    def headed(self) -> bool:
        """Whether there are outputs to learn; otherwise it is features."""
        return "own" in self.task.heads and self.kept.outputs is not None

    @property
    def weight(self) -> str:
        """What the head's weight is called among what is learnt."""
        return f"{self.task.name}\thead.weight"

    @property
    def bias(self) -> str:
        return f"{self.task.name}\thead.bias"

    def wanted(self) -> Tensor:
        """Return what its own model said: outputs, or features without a head."""
        answers = self.kept.outputs if self.headed else self.kept.features
        assert answers is not None
        return answers

    def lesson(self) -> Lesson:
        """Return its inputs as a lesson; a head of one output gives values, any other one classes."""
        wanted = self.wanted()

        def read(weights: Mapping[str, Tensor], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
            backbone = {name: weights[name] for name in self.model.names}
            features = self.model.read(backbone, self.model.batch(rows)).features
            if self.headed:
                features = functional.linear(features, weights[self.weight], weights.get(self.bias))
            return features, wanted[list(rows)]

        classes = self.headed and wanted.shape[1] > 1
        spread = float(wanted.double().var(0, correction=0).mean())
        return Lesson(self.task.name, len(self.kept), read, divergence if classes else squared_error(spread))

    def head(self, backbone: Vector, lesson: Lesson, choices: Choices, settings: Finish) -> LinearHead:
        """Return its head for a backbone, fitted on the rows that the lesson is learnt from."""
        rows = sorted(lesson.parts(settings.held_out, settings.seed)[0])
        some = Kept(take(self.kept.inputs, rows), None, self.wanted()[rows])
        features = self.model.over(some.inputs).features(backbone, choices.batch_size)
        return fit_head(choices.start, self.task, features, some, choices)


@dataclass(frozen=True, eq=False)
class FinishedFusion:
    """What a finish makes of a fusion.

    Attributes:
        change: of the merged backbone; empty where nothing was learnt.
        tasks: with their finished heads.
        details: rate, steps and losses.
    """

    change: Vector = field(default_factory=dict)
    tasks: tuple[FusedTask, ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)


def finish_fusion(
    tasks: Sequence[FusedTask],
    backbone: Vector,
    choices: Choices,
    *,
    folder: Path | None = None,
    progress: Progress = quiet,
) -> FinishedFusion:
    """Return the change of the merged backbone, and the tasks with heads that learnt with it."""
    ready = [known for task in tasks if (known := _taught(task)) is not None]
    bare = tuple(replace(task, heads=_without(task)) for task in tasks)
    settings = choices.finishing(len(ready))
    if not ready or not settings.steps:
        return FinishedFusion(tasks=bare)
    lessons, tensors = [task.lesson() for task in ready], dict(backbone)
    for task, lesson in zip(ready, lessons, strict=True):
        if task.headed:
            head = task.head(backbone, lesson, choices, settings)
            tensors[task.weight] = head.weight
            if head.bias is not None:
                tensors[task.bias] = head.bias
    key = " ".join(task.task.fingerprint for task in ready)
    cost = estimate(lessons, tensors, sum(tensor.numel() for tensor in tensors.values()), settings)

    def told(what: str, done: int, total: int) -> None:
        progress(f"{what} (in all {cost})", done, total)

    outcome = finish(lessons, Weights(tensors), settings, folder=folder, key=key, progress=told)
    details = {
        "finish, steps": float(outcome.steps),
        "finish, rate": outcome.rate,
        "finish, held-out loss before": outcome.before,
        "finish, held-out loss after": outcome.after,
    }
    if not outcome.steps:  # heads that are fitted on all inputs are better than those of its start
        return FinishedFusion(tasks=bare, details=details)
    heads = {task.task.name: _head(task, outcome) for task in ready if task.headed}
    return FinishedFusion(
        {name: outcome.learnt[name] - tensor for name, tensor in backbone.items()},
        tuple(
            replace(task, heads={**task.heads, FINISHED: heads[task.name]}) if task.name in heads else task
            for task in bare
        ),
        details,
    )


def _taught(task: FusedTask) -> Taught | None:
    kept = task.store.kept()
    if kept is None or len(kept) < LEAST or (kept.outputs is None and kept.features is None):
        return None
    return Taught(task, task.store.model().over(kept.inputs), kept)


def _head(task: Taught, outcome: Finished) -> LinearHead:
    bias = outcome.learnt.get(task.bias)
    return LinearHead(outcome.learnt[task.weight], bias)


def _without(task: FusedTask) -> dict[HeadKind, LinearHead]:
    return {kind: head for kind, head in task.heads.items() if kind != FINISHED}
