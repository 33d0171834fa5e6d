"""The finish of a transport: the target learns, without a label, what the fine-tuned source says of inputs.

It starts where the closed form ended, at its strength. The target's own head stays as it is, and a carried
head learns with the weights. Beside it stands a control: the same finish from the untouched target, or of a
random update through the same maps where only strengths may move.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from transship import parallel
from transship.activations.functional import run_with
from transship.errors import OptionError
from transship.finish import (
    Factored,
    Finish,
    FinishCost,
    Finished,
    Lesson,
    Movable,
    Strengths,
    Weights,
    divergence,
    divergence_of_likely,
    estimate,
    finish,
    fresh_factors,
    kept_outputs,
    neighbours,
    squared_error,
)
from transship.finish.movables import spread
from transship.numerics import derive_seed
from transship.progress import Progress, quiet
from transship.verbs.transport.account import Candidate, Choice
from transship.verbs.transport.auto import compared_on
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.move import Moved, move
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import parts_of
from transship.verbs.transport.result import Result
from transship.verbs.transport.runner import fit_head, score
from transship.verbs.transport.statistics import Prepared, prepare
from transship.verbs.transport.teacher import Teacher, TokenTeacher, agreement, read_tokens, teach
from transship.verbs.transport.weights import shifted

# `auto` finishes with so many inputs or more: fewer are learnt by heart
LEAST_INPUTS = 200
LIKELY = 64  # words of a vocabulary that are kept of what a language model says
_HEAD = ("\thead.weight", "\thead.bias")


def finishing(plan: Plan) -> Finish:
    """Return how a plan is finished; `auto` finishes where `auto` chose the method and inputs suffice."""
    asked = plan.settings.finish
    if asked == "auto":
        enough = len(plan.draws.head) >= LEAST_INPUTS
        asked = "weights" if plan.method is None and enough and not _hindrance(plan) else "none"
    chosen = Finish.parse(asked, seed=plan.settings.seed)
    return dataclasses.replace(chosen, batch_size=plan.settings.batch_size)


def check_finish(plan: Plan) -> None:
    """Refuse a finish that was asked for and cannot be."""
    if plan.settings.finish in ("auto", "none"):
        return
    Finish.parse(plan.settings.finish)
    if hindrance := _hindrance(plan):
        raise OptionError(hindrance, where="--finish", fix="choose --finish none")


def _hindrance(plan: Plan) -> str:
    """Say why the target cannot learn what the fine-tune says, if so."""
    if plan.task == "language" and not plan.comparable:
        return "the two vocabularies differ, so that no word says what the other model means"
    if any(parameter.is_meta for parameter in plan.target.model.model.parameters()):
        return "a part of the target lies on disk, and only what is in memory can learn"
    return ""


def cost_of(plan: Plan) -> FinishCost | None:
    """Return what the finish of a plan costs at most with its control; None where there is none."""
    settings = finishing(plan)
    if not settings.steps:
        return None
    base = _base(plan)

    def read(weights: Mapping[str, Tensor], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        batch = plan.target.model.preprocess([plan.draws.head[row] for row in rows])
        features = run_with(plan.target.model.model, weights, plan.target_readout, batch).features
        return features, features

    lessons = [Lesson("cost", len(plan.draws.head), read, squared_error(1.0))]
    learnt = sum(tensor.numel() for tensor in base.values())
    cost = estimate(lessons, base, learnt, settings)
    return dataclasses.replace(cost, steps=2 * cost.steps, seconds=2 * cost.seconds)


def finish_transport(plan: Plan, prepared: Prepared, result: Result, *, progress: Progress = quiet) -> Result:
    """Return the result after its finish, with the finish's control beside it."""
    settings = finishing(plan)
    if not settings.steps:
        if plan.kept is None or result.head is not None:
            return result
        note = "--keep was not used: the target keeps its own head, and was not finished"
        return dataclasses.replace(result, notes=[*result.notes, note])
    if plan.task in ("classes", "values", "tokens") and not plan.own_head and result.head is None:
        note = "it was not finished: the target has no head that answers as the fine-tune does"
        return dataclasses.replace(result, notes=[*result.notes, note])
    school = _School(plan, prepared, settings, progress)
    ended = school.taught(result.moved, result.strength, result.head)
    control, label = school.control(result)
    rows = [*result.candidates] or [Candidate(result.method, result.strength, school.score_of(result))]
    rows += [
        Candidate(label, 1.0, school.agreement(control)),
        Candidate(f"{result.method}, finish {settings}", 1.0, school.agreement(ended)),
    ]
    outcome = ended.outcome
    if not outcome.steps:
        notes = [*result.notes, "the finish changed nothing: no step made held-out inputs more alike"]
        return dataclasses.replace(result, candidates=rows, notes=notes, compared_on=compared_on(plan))
    return dataclasses.replace(
        result,
        moved=ended.moved,
        head=ended.head,
        choice=Choice(1.0, (), "finish"),
        candidates=rows,
        compared_on=compared_on(plan),
        adapter=result.adapter and bool(ended.moved.factors),
        parameters={**result.parameters, "strength": 1.0, "finish": str(settings)},
        metrics={
            **result.metrics,
            "finish, steps": float(outcome.steps),
            "finish, rate": outcome.rate,
            "finish, held-out loss before": outcome.before,
            "finish, held-out loss after": outcome.after,
        },
        notes=[*result.notes, _sentence(settings, outcome)],
    )


def _sentence(settings: Finish, outcome: Finished) -> str:
    what = {"tensor": "a strength per tensor", "row": "a strength per row", "weights": "weights"}
    return (
        f"it was finished: {what[settings.moves]} learnt for {outcome.steps} steps at a rate of "
        f"{outcome.rate:g}, and the divergence on {outcome.judged_by} inputs that were not learnt from fell "
        f"from {outcome.before:.3f} to {outcome.after:.3f}"
    )


@dataclass(frozen=True, eq=False)
class _Ended:
    moved: Moved
    head: CarriedHead | None
    outcome: Finished


@dataclass(frozen=True, eq=False)
class _School:
    """The lessons of one plan, for the moved update and for its control."""

    plan: Plan
    prepared: Prepared
    settings: Finish
    progress: Progress

    def taught(self, moved: Moved, strength: float, head: CarriedHead | None) -> _Ended:
        """Return an update after its finish."""
        plan = self.plan
        movable = _movable(plan, self.settings, moved, strength, head)
        folder = None if plan.folder is None else plan.folder / "finish"
        outcome = finish(
            self.lessons(head),
            movable,
            self.settings,
            folder=folder,
            key=f"{plan.source.fingerprint()} {plan.tuned.fingerprint()} {plan.draws.fingerprint}",
            progress=self.progress,
        )
        return _Ended(_moved(plan, movable, moved, outcome), _head(head, outcome), outcome)

    def control(self, result: Result) -> tuple[_Ended, str]:
        """Return what the same finish gives without what was moved, and what it is called."""
        plan, moves = self.plan, self.settings.moves
        if moves == "weights":
            head = result.head
            if head is not None:
                head = fit_head(plan, self.prepared, result.parameters.get("penalty"), Moved(), 0.0)
            empty = Moved(factors={name: _fresh(pair) for name, pair in result.moved.factors.items()})
            return self.taught(empty, 0.0, head), f"untouched target, finish {self.settings}"
        noise = next(method for method in parts_of("control"))
        read = prepare(plan, noise, known=self.prepared)
        moved = move(plan, read.statistics, noise)
        ended = self.taught(moved, result.strength, result.head)
        return ended, f"{noise.name}, finish {self.settings}"

    def lessons(self, head: CarriedHead | None) -> list[Lesson]:
        """Return the task's lesson, and the one of what the target knew before."""
        plan = self.plan
        lessons = [_token_lesson(plan, head) if plan.task in ("tokens", "language") else self._rows(head)]
        if plan.kept is not None and plan.own_head:
            with torch.no_grad():
                own = plan.target_readout.all(plan.kept).outputs
            assert own is not None
            weight = plan.settings.keep_weight
            lessons.append(_row_lesson(plan, "keep", plan.kept, own.float().cpu(), head, weight))
        return lessons

    def _rows(self, head: CarriedHead | None) -> Lesson:
        plan = self.plan

        def ask() -> dict[str, Tensor]:
            with plan.running_tuned() as readout:
                teacher = teach(readout, plan.draws.head, plan.settings.batch_size)
            assert isinstance(teacher, Teacher)
            return {"outputs": teacher.outputs}

        key = (
            f"{plan.tuned.fingerprint()} {plan.draws.fingerprint} {len(plan.draws.head)} {plan.settings.seed}"
        )
        outputs = kept_outputs(plan.folder, key, ask)["outputs"]
        return _row_lesson(plan, "task", plan.draws.head, outputs, head, 1.0)

    def agreement(self, ended: _Ended) -> float:
        """Return how often a finished target agrees with the fine-tune on held-out inputs."""
        return self._agreement(ended.moved, 1.0, ended.head)

    def score_of(self, result: Result) -> float:
        """Return the same of what is not finished."""
        return self._agreement(result.moved, result.strength, result.head)

    def _agreement(self, moved: Moved, strength: float, head: CarriedHead | None) -> float:
        plan, teacher = self.plan, self.prepared.held_out_teacher
        if teacher is None:
            with plan.running_tuned() as readout:
                teacher = teach(readout, plan.draws.held_out, plan.settings.batch_size)
        with shifted(plan.target.model.model, moved.dense, strength):
            if head is None or not isinstance(teacher, Teacher):
                return score(plan, teacher, own_head=head is None, fit=self.prepared.head_teacher)
            features = plan.target_readout.all(teacher.inputs).features.cpu()
        outputs = head.map.apply(features.double()).float()
        return parallel.agreed(agreement(outputs, teacher.outputs, plan.task))


def _row_lesson(
    plan: Plan,
    name: str,
    inputs: Sequence[object],
    wanted: Tensor,
    head: CarriedHead | None,
    weight: float,
) -> Lesson:
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


def _token_lesson(plan: Plan, head: CarriedHead | None) -> Lesson:
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


def _base(plan: Plan) -> dict[str, Tensor]:
    """Return the target's weights, without those of its head."""
    head = plan.target_readout.head
    own = () if head is None else (head.weight, head.bias)
    return {
        name: parameter.detach()
        for name, parameter in plan.target.model.model.named_parameters()
        if parameter.is_floating_point() and name not in own
    }


def _movable(
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
    for name, tensor in _base(plan).items():
        learnt[name] = tensor.float() + strength * change[name] if name in change else tensor
    return Weights(learnt)


def _moved(plan: Plan, movable: Movable, moved: Moved, outcome: Finished) -> Moved:
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


def _head(head: CarriedHead | None, outcome: Finished) -> CarriedHead | None:
    if head is None or _HEAD[0] not in outcome.learnt:
        return head
    weight, bias = (outcome.learnt[name].double().cpu() for name in _HEAD)
    fitted = dataclasses.replace(head.map, matrix=weight.T.contiguous(), source_mean=None, target_mean=bias)
    return dataclasses.replace(head, map=fitted)


def _fresh(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return factors of the same rank whose product is zero."""
    up, down = pair
    matrix = torch.empty(up.shape[0], down.shape[1], device="meta")
    return fresh_factors({"": matrix}, up.shape[1], derive_seed(0, "control") % 2**31)[""]
