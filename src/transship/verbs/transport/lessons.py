"""What a target learns in a finish, and what of it may move: the lessons and weights of one plan."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from transship.activations.functional import run_with
from transship.finish import (
    Factored,
    Finish,
    Finished,
    Lesson,
    Movable,
    Strengths,
    Weights,
    divergence,
    divergence_of_likely,
    fresh_factors,
    neighbours,
    squared_error,
)
from transship.finish.movables import spread
from transship.numerics import derive_seed
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.move import Moved
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.teacher import TokenTeacher, read_tokens

LIKELY = 64  # words of a vocabulary that are kept of what a language model says
_HEAD = ("\thead.weight", "\thead.bias")


def row_lesson(
    plan: Plan,
    name: str,
    inputs: Sequence[object],
    wanted: Tensor,
    head: CarriedHead | None,
    weight: float,
) -> Lesson:
    """Return a lesson of one answer per input."""
    module, readout, task = plan.target.model.model, plan.target_readout, plan.task

    def read(weights: Mapping[str, Tensor], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        batch = plan.target.model.preprocess([inputs[row] for row in rows])
        reading = run_with(module, _body(weights), readout, batch)
        outputs = (
            reading.features
            if task == "features"
            else _answers(reading.outputs, reading.features, weights, head)
        )
        return outputs, wanted[list(rows)]

    if task == "features":
        return Lesson(name, len(inputs), read, neighbours, weight)
    spread_of = float(wanted.double().var(0, correction=0).mean())
    return Lesson(
        name, len(inputs), read, divergence if task == "classes" else squared_error(spread_of), weight
    )


def token_lesson(plan: Plan, head: CarriedHead | None) -> Lesson:
    """Return a lesson of one answer per token, of those that both tokenizers end at one place."""
    with plan.running_tuned() as readout:
        likely = LIKELY if plan.task == "language" else 0
        teacher = TokenTeacher.of(readout, plan.draws.head, plan.settings.batch_size, likely=likely)
    module, target = plan.target.model.model, plan.target_readout

    def read(weights: Mapping[str, Tensor], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        batch = plan.target.model.preprocess([plan.draws.head[row] for row in rows])
        features, outputs, tokens = run_with(
            module, _body(weights), lambda batch: read_tokens(target, batch), batch
        )
        wanted, aligned = teacher.beside(rows, batch, tokens)
        return aligned.target.apply(_answers(outputs, features, weights, head)), wanted

    distance = divergence_of_likely if plan.task == "language" else divergence
    return Lesson("task", len(plan.draws.head), read, distance)


def _answers(
    outputs: Tensor | None, features: Tensor, weights: Mapping[str, Tensor], head: CarriedHead | None
) -> Tensor:
    """Return what the student says: through a carried head, as it is learnt or as it is, or its own."""
    if head is None:
        assert outputs is not None, "a target without a head has a carried one"
        return outputs
    weight, bias = (weights.get(name, own) for name, own in zip(_HEAD, (head.weight, head.bias), strict=True))
    return functional.linear(features, weight.to(features), bias.to(features))


def _body(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name not in _HEAD}


def body_of(plan: Plan) -> dict[str, Tensor]:
    """Return the target's weights, without those of its head."""
    head = plan.target_readout.head
    own = () if head is None else (head.weight, head.bias)
    return {
        name: parameter.detach()
        for name, parameter in plan.target.model.model.named_parameters()
        if parameter.is_floating_point() and name not in own
    }


def movable_of(
    plan: Plan, settings: Finish, moved: Moved, strength: float, head: CarriedHead | None
) -> Movable:
    """Return what may move: strengths of an update, factors where it has some, or all weights."""
    base = {name: tensor.detach() for name, tensor in plan.target.model.model.named_parameters()}
    change = {name: update.to(base[name].device).float() for name, update in moved.dense.items()}
    if settings.moves in ("tensor", "row"):
        per: Literal["tensor", "row"] = "row" if settings.moves == "row" else "tensor"
        # at strength 0 an update has no slope to leave it by
        return Strengths(base, change, per, strength or 1.0)
    learnt: dict[str, Tensor] = {}
    if head is not None:
        learnt = dict(zip(_HEAD, (head.weight, head.bias), strict=True))
    if moved.factors:
        pairs = {name: (strength * up, down) for name, (up, down) in moved.factors.items()}
        if strength == 0.0:
            pairs = dict(moved.factors)
        others = {name: base[name].float() + strength * change[name] for name in change if name not in pairs}
        return Factored({name: base[name] for name in pairs}, pairs, {**others, **learnt})
    for name, tensor in body_of(plan).items():
        learnt[name] = tensor.float() + strength * change[name] if name in change else tensor
    return Weights(learnt)


def learnt_update(plan: Plan, movable: Movable, moved: Moved, outcome: Finished) -> Moved:
    """Return the update that was learnt, at strength 1; factors stay factors."""
    base = dict(plan.target.model.model.named_parameters())
    with torch.no_grad():
        weights = _body(movable.weights(outcome.learnt))
        dense = {name: (tensor - base[name].float()).cpu() for name, tensor in weights.items()}
    factors = {}
    for name, (up, down) in moved.factors.items():
        if isinstance(movable, Factored):
            factors[name] = outcome.learnt[f"{name}.up"].cpu(), outcome.learnt[f"{name}.down"].cpu()
        elif isinstance(movable, Strengths):
            factors[name] = spread(outcome.learnt[name].cpu(), up) * up, down
    return Moved(dense, factors, moved.layers, moved.left)


def learnt_head(head: CarriedHead | None, outcome: Finished) -> CarriedHead | None:
    """Return a head as it was learnt, or as it is where it was not."""
    if head is None or _HEAD[0] not in outcome.learnt:
        return head
    weight, bias = (outcome.learnt[name].double().cpu() for name in _HEAD)
    fitted = dataclasses.replace(head.map, matrix=weight.T.contiguous(), source_mean=None, target_mean=bias)
    return dataclasses.replace(head, map=fitted)


def fresh(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return factors of the same rank whose product is zero."""
    up, down = pair
    matrix = torch.empty(up.shape[0], down.shape[1], device="meta")
    return fresh_factors({"": matrix}, up.shape[1], derive_seed(0, "control") % 2**31)[""]
