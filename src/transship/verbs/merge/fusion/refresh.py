"""After a model has joined: the strength of the merged vector, heads of all tasks, what can be measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from transship.errors import OptionError
from transship.verbs.merge.fusion.choices import Choices
from transship.verbs.merge.fusion.measure import shift
from transship.verbs.merge.fusion.task import Fused, FusedTask, Kept
from transship.verbs.merge.maths.states import Vector, norm
from transship.verbs.merge.tasks.heads import FRESH, HeadKind, LinearHead, accuracy, carry, polish, tune

STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
HELD_OUT = 3  # one kept input in so many judges a strength


def scaled(base: Mapping[str, Tensor], vector: Mapping[str, Tensor], strength: float) -> Vector:
    """Return θ_0 + strength · τ."""
    return {name: torch.add(base[name], change, alpha=strength) for name, change in vector.items()}


def merged_backbone(fused: Fused, base: Vector, choices: Choices) -> Vector:
    """Return θ_0 + strength · τ_m with what a finish added to it."""
    merged = scaled(base, choices.method.merged(fused.state, base), fused.strength)
    return (
        {name: tensor + fused.finished[name] for name, tensor in merged.items()} if fused.finished else merged
    )


def find_strength(
    base: Mapping[str, Tensor], vector: Mapping[str, Tensor], tasks: Sequence[FusedTask], choices: Choices
) -> float:
    """Return the strength: a number, by `norm`, or by `validation` on kept inputs.

    `norm` gives the merged vector the mean length of the updates. `validation` takes, of a few strengths, the
    one at which heads fitted on two thirds of the kept inputs agree most often with the tasks' own models on
    the remaining third; no label is read.
    """
    if not isinstance(choices.strength, str):
        return float(choices.strength)
    if choices.strength == "norm":
        size = norm(vector)
        return sum(task.norm for task in tasks) / len(tasks) / size if size > 0 else 1.0
    scores = [agreement(scaled(base, vector, strength), tasks, choices) for strength in STRENGTHS]
    return STRENGTHS[max(range(len(scores)), key=lambda place: scores[place])]


def agreement(backbone: Vector, tasks: Sequence[FusedTask], choices: Choices) -> float:
    """Return how often, on kept inputs that no head was fitted on, tasks answer as their own models do."""
    shares = []
    for task in tasks:
        kept = task.store.kept()
        if kept is None or kept.outputs is None or len(kept) < HELD_OUT:
            continue
        features = task.store.model().over(kept.inputs).features(backbone, choices.batch_size)
        judged = torch.arange(len(kept)) % HELD_OUT == 0
        head = task.heads["own"]
        if choices.start.startswith("carried"):
            head = carry(features[~judged], kept.outputs[~judged], head, choices.head_settings)
        shares.append(accuracy(head(features[judged]), kept.outputs[judged].argmax(1)))
    if not shares:
        raise OptionError(
            "there are no kept inputs to choose a strength on",
            where="--strength validation",
            fix="allow inputs to be kept with --keep-inputs, or choose norm or a number",
        )
    return sum(shares) / len(shares)


@dataclass(frozen=True)
class Measured:
    """What can be measured of all tasks under one backbone, as `StepReport` has it."""

    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    shift: dict[str, float] = field(default_factory=dict)
    sinkhorn: dict[str, float] = field(default_factory=dict)


def refresh(
    tasks: Sequence[FusedTask], backbone: Vector, choices: Choices
) -> tuple[tuple[FusedTask, ...], Measured]:
    """Return every task with its heads for a new backbone, and what was measured.

    Tasks are opened one after another and dropped, so that memory does not grow with their number.
    """
    refreshed, measured = [], Measured()
    for place, task in enumerate(tasks):
        last = place == len(tasks) - 1
        # OTMF's schedule: a head is tuned when the next model has come
        tuned_now = place == len(tasks) - 2 or (last and choices.head_settings.final_head)
        heads = _refreshed(task, backbone, choices, measured, tuned_now=tuned_now)
        refreshed.append(replace(task, heads=heads))
    return tuple(refreshed), measured


def _refreshed(
    task: FusedTask, backbone: Vector, choices: Choices, measured: Measured, *, tuned_now: bool
) -> dict[HeadKind, LinearHead]:
    """Return the heads of one task, and note what is measured of it."""
    model, kept, heads = task.store.model(), task.store.kept(), dict(task.heads)
    changing = any(kind in FRESH or (kind == "tuned" and tuned_now) for kind in choices.heads)
    refitted = "own" in heads and changing
    if kept is not None and len(kept) and (choices.evaluate or refitted):
        features = model.over(kept.inputs).features(backbone, choices.batch_size)
        if choices.evaluate and kept.features is not None:
            measured.shift[task.name], measured.sinkhorn[task.name] = shift(features, kept.features)
        if refitted:
            heads |= _refitted(heads["own"], features, kept, choices, tuned_now=tuned_now)
    test = task.store.test() if choices.evaluate and "own" in heads else None
    if test is not None:
        features = model.over(test.inputs).features(backbone, choices.batch_size)
        for kind in dict.fromkeys(("own", *choices.heads)):
            share = accuracy(heads.get(kind, heads["own"])(features), test.labels)
            measured.accuracy.setdefault(kind, {})[task.name] = share
    return heads


def _refitted(
    own: LinearHead, features: Tensor, kept: Kept, choices: Choices, *, tuned_now: bool
) -> dict[HeadKind, LinearHead]:
    """Return the heads that change with a new backbone, from its features of the kept inputs."""
    settings = choices.head_settings
    heads: dict[HeadKind, LinearHead] = {}
    carried: LinearHead | None = None
    for kind in choices.heads:
        if kind in ("carried", "carried-polished") and kept.outputs is not None:
            carried = carried or carry(features, kept.outputs, own, settings)
            polished = kind == "carried-polished"
            heads[kind] = polish(carried, features, kept.outputs, settings) if polished else carried
        elif kept.labels is not None and (kind == "tuned-fresh" or (kind == "tuned" and tuned_now)):
            heads[kind] = tune(own, features[: len(kept.labels)], kept.labels, settings)
    return heads


def fit_head(kind: HeadKind, task: FusedTask, features: Tensor, kept: Kept, choices: Choices) -> LinearHead:
    """Return a task's head of a kind for these features of its inputs: fitted anew where that kind is."""
    only = replace(choices, heads=(kind,))
    return _refitted(task.heads["own"], features, kept, only, tuned_now=False).get(kind, task.head(kind))
