"""After a model has joined: the strength of the merged vector, heads of all tasks, what can be measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transship.errors import OptionError
from transship.verbs.merge.fusion.evaluate import StepReport, shift
from transship.verbs.merge.fusion.task import Kept, Task
from transship.verbs.merge.maths.states import Vector, norm
from transship.verbs.merge.tasks.heads import (
    FRESH,
    HeadKind,
    HeadSettings,
    LinearHead,
    accuracy,
    carry,
    polish,
    tune,
)

STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
HELD_OUT = 3  # one kept input in so many judges a strength


@dataclass(frozen=True, eq=False)
class Fitting:
    """How heads are fitted, and in what batches models run."""

    kinds: tuple[HeadKind, ...]
    settings: HeadSettings
    batch_size: int


def scaled(base: Mapping[str, Tensor], vector: Mapping[str, Tensor], strength: float) -> Vector:
    """Return θ_0 + strength · τ."""
    return {name: torch.add(base[name], change, alpha=strength) for name, change in vector.items()}


def find_strength(
    asked: float | str,
    base: Mapping[str, Tensor],
    vector: Mapping[str, Tensor],
    tasks: Sequence[Task],
    fitting: Fitting,
) -> float:
    """Return the strength: a number, by `norm`, or by `validation` on kept inputs.

    `norm` gives the merged vector the mean length of the updates. `validation` takes, of a few strengths, the
    one at which heads fitted on two thirds of the kept inputs agree most often with the tasks' own models on
    the remaining third; no label is read.
    """
    if not isinstance(asked, str):
        return float(asked)
    if asked == "norm":
        size = norm(vector)
        return sum(task.norm for task in tasks) / len(tasks) / size if size > 0 else 1.0
    scores = [_agreement(scaled(base, vector, strength), tasks, fitting) for strength in STRENGTHS]
    return STRENGTHS[max(range(len(scores)), key=lambda place: scores[place])]


def _agreement(backbone: Vector, tasks: Sequence[Task], fitting: Fitting) -> float:
    found = []
    for task in tasks:
        kept = task.keeper()
        if kept is None or kept.outputs is None or len(kept) < HELD_OUT:
            continue
        features = task.opener().over(kept.inputs).features(backbone, fitting.batch_size)
        judged = torch.arange(len(kept)) % HELD_OUT == 0
        head = task.heads["own"]
        if fitting.kinds[0].startswith("carried"):
            head = carry(features[~judged], kept.outputs[~judged], head, fitting.settings)
        found.append(accuracy(head(features[judged]), kept.outputs[judged].argmax(1)))
    if not found:
        raise OptionError(
            "there are no kept inputs to choose a strength on",
            where="--strength validation",
            fix="allow inputs to be kept with --keep-inputs, or choose norm or a number",
        )
    return sum(found) / len(found)


def refit(
    task: Task, features: Tensor, kept: Kept, fitting: Fitting, *, tuned_now: bool
) -> dict[HeadKind, LinearHead]:
    """Return the heads of a task that change with a new backbone.

    Args:
        task: with its own head.
        features: the merged model's, of the kept inputs.
        kept: the inputs, and what the task's own model said of them.
        fitting: kinds and settings.
        tuned_now: whether the paper's schedule tunes this head in this step.
    """
    own, settings = task.heads["own"], fitting.settings
    made: dict[HeadKind, LinearHead] = {}
    carried: LinearHead | None = None
    for kind in fitting.kinds:
        if kind in ("carried", "carried-polished") and kept.outputs is not None:
            carried = carried or carry(features, kept.outputs, own, settings)
            polished = kind == "carried-polished"
            made[kind] = polish(carried, features, kept.outputs, settings) if polished else carried
        elif kept.labels is not None and (kind == "tuned-fresh" or (kind == "tuned" and tuned_now)):
            made[kind] = tune(own, features[: len(kept.labels)], kept.labels, settings)
    return made


def _refitted(fitting: Fitting, *, tuned_now: bool) -> bool:
    """Return whether any kind of head of a task changes in this step."""
    return any(kind in FRESH or (kind == "tuned" and tuned_now) for kind in fitting.kinds)


def refresh(
    tasks: Sequence[Task], backbone: Vector, report: StepReport, fitting: Fitting, *, evaluate: bool
) -> dict[str, dict[HeadKind, LinearHead]]:
    """Return the heads of every task for a new backbone, and write what was measured into `report`.

    Tasks are opened one after another and dropped, so that memory does not grow with their number.
    """
    made: dict[str, dict[HeadKind, LinearHead]] = {}
    for place, task in enumerate(tasks):
        model = task.opener()
        heads = dict(task.heads)
        kept = task.keeper()
        last = place == len(tasks) - 1
        now = place == len(tasks) - 2 or (last and fitting.settings.final_head)
        refitted = "own" in heads and _refitted(fitting, tuned_now=now)
        if kept is not None and len(kept) and (evaluate or refitted):
            features = model.over(kept.inputs).features(backbone, fitting.batch_size)
            if evaluate and kept.features is not None:
                report.shift[task.name], report.sinkhorn[task.name] = shift(features, kept.features)
            if refitted:
                heads |= refit(task, features, kept, fitting, tuned_now=now)
        made[task.name] = heads
        test = task.tester() if evaluate and "own" in heads else None
        if test is not None:
            features = model.over(test.inputs).features(backbone, fitting.batch_size)
            for kind in dict.fromkeys(("own", *fitting.kinds)):
                head = heads.get(kind, heads["own"])
                report.accuracy.setdefault(kind, {})[task.name] = accuracy(head(features), test.labels)
    return made
