"""The finish of a transport: the target learns, without a label, what the fine-tuned source says of inputs.

It starts where the closed form ended, at its strength. The target's own head stays as it is, and a carried
head learns with the weights. Beside it stands a control: the same finish from the untouched target, or of a
random update through the same maps where only strengths may move.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from transship import parallel
from transship.activations.functional import run_with
from transship.errors import OptionError
from transship.finish import (
    Finish,
    FinishCost,
    Finished,
    Lesson,
    estimate,
    finish,
    kept_outputs,
    squared_error,
)
from transship.progress import Progress, quiet
from transship.verbs.transport.account import Candidate, Choice
from transship.verbs.transport.auto import compared_on
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.lessons import (
    body_of,
    fresh,
    learnt_head,
    learnt_update,
    movable_of,
    row_lesson,
    token_lesson,
)
from transship.verbs.transport.move import Moved, move
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import parts_of
from transship.verbs.transport.result import Result
from transship.verbs.transport.runner import fit_head, score
from transship.verbs.transport.statistics import Prepared, prepare
from transship.verbs.transport.teacher import Teacher, agreement, teach
from transship.verbs.transport.weights import shifted

# `auto` finishes with so many inputs or more: fewer are learnt by heart
LEAST_INPUTS = 200


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
    base = body_of(plan)

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
    return finish_with_control(plan, prepared, result, progress=progress)[0]


def finish_with_control(
    plan: Plan, prepared: Prepared, result: Result, *, progress: Progress = quiet
) -> tuple[Result, Result | None]:
    """Return the result after its finish, and the finish's control; None where nothing is finished."""
    settings = finishing(plan)
    if not settings.steps:
        if plan.kept is None or result.head is not None:
            return result, None
        note = "--keep was not used: the target keeps its own head, and was not finished"
        return dataclasses.replace(result, notes=[*result.notes, note]), None
    if plan.task in ("classes", "values", "tokens") and not plan.own_head and result.head is None:
        note = "it was not finished: the target has no head that answers as the fine-tune does"
        return dataclasses.replace(result, notes=[*result.notes, note]), None
    school = _School(plan, prepared, settings, progress)
    ended = school.taught(result.moved, result.strength, result.head)
    control, label = school.control(result)
    closed = school.row(result.method, result.moved, result.strength, result.head)
    rows = [*result.candidates] or [closed]
    rows += [control.row(school, label), ended.row(school, f"{result.method}, finish {settings}")]
    compared = dataclasses.replace(result, candidates=rows, compared_on=compared_on(plan))
    beside = dataclasses.replace(_finished(compared, control), method=label)
    if not ended.outcome.steps:
        note = "the finish changed nothing: no step made held-out inputs more alike"
        return dataclasses.replace(compared, notes=[*result.notes, note]), beside
    notes = [*result.notes, _sentence(settings, ended.outcome)]
    parameters = {**result.parameters, "strength": 1.0, "finish": str(settings)}
    return dataclasses.replace(_finished(compared, ended), parameters=parameters, notes=notes), beside


def _finished(result: Result, ended: "_Ended") -> Result:
    """Return a result with what a finish made of it."""
    outcome = ended.outcome
    metrics = {
        "finish, steps": float(outcome.steps),
        "finish, rate": outcome.rate,
        "finish, held-out loss before": outcome.before,
        "finish, held-out loss after": outcome.after,
    }
    return dataclasses.replace(
        result,
        moved=ended.moved,
        head=ended.head,
        choice=Choice(1.0, (), "finish"),
        adapter=result.adapter and bool(ended.moved.factors),
        metrics={**result.metrics, **metrics},
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
    """A finished update, and the CPU seconds that its finish took."""

    moved: Moved
    head: CarriedHead | None
    outcome: Finished
    seconds: float

    def row(self, school: "_School", label: str) -> Candidate:
        """Return its row of the comparison."""
        return dataclasses.replace(school.row(label, self.moved, 1.0, self.head), seconds=self.seconds)


@dataclass(frozen=True, eq=False)
class _School:
    """The lessons of one plan, for the moved update and for its control."""

    plan: Plan
    prepared: Prepared
    settings: Finish
    progress: Progress

    def taught(self, moved: Moved, strength: float, head: CarriedHead | None) -> _Ended:
        """Return an update after its finish."""
        plan, begun = self.plan, time.process_time()
        movable = movable_of(plan, self.settings, moved, strength, head)
        folder = None if plan.folder is None else plan.folder / "finish"
        outcome = finish(
            self.lessons(head),
            movable,
            self.settings,
            folder=folder,
            key=f"{plan.source.fingerprint()} {plan.tuned.fingerprint()} {plan.draws.fingerprint}",
            progress=self.progress,
        )
        seconds = time.process_time() - begun
        return _Ended(
            learnt_update(plan, movable, moved, outcome), learnt_head(head, outcome), outcome, seconds
        )

    def control(self, result: Result) -> tuple[_Ended, str]:
        """Return what the same finish gives without what was moved, and what it is called."""
        plan, moves = self.plan, self.settings.moves
        if moves == "weights":
            head = result.head
            if head is not None:
                head = fit_head(plan, self.prepared, result.parameters.get("penalty"), Moved(), 0.0)
            empty = Moved(factors={name: fresh(pair) for name, pair in result.moved.factors.items()})
            return self.taught(empty, 0.0, head), f"untouched target, finish {self.settings}"
        noise = next(method for method in parts_of("control"))
        read = prepare(plan, noise, known=self.prepared)
        moved = move(plan, read.statistics, noise)
        ended = self.taught(moved, result.strength, result.head)
        return ended, f"{noise.name}, finish {self.settings}"

    def lessons(self, head: CarriedHead | None) -> list[Lesson]:
        """Return the task's lesson, and the one of what the target knew before."""
        plan = self.plan
        lessons = [token_lesson(plan, head) if plan.task in ("tokens", "language") else self._rows(head)]
        return lessons if self.own is None else [*lessons, self._keep(head)]

    @cached_property
    def own(self) -> Tensor | None:
        """What the untouched target says of the inputs to keep; None where it has no say."""
        plan = self.plan
        if plan.kept is None or not plan.own_head:
            return None
        with torch.no_grad():
            own = plan.target_readout.all(plan.kept).outputs
        assert own is not None
        return own.float().cpu()

    def _keep(self, head: CarriedHead | None) -> Lesson:
        plan, own = self.plan, self.own
        assert plan.kept is not None
        assert own is not None
        return row_lesson(plan, "keep", plan.kept, own, head, plan.settings.keep_weight)

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
        return row_lesson(plan, "task", plan.draws.head, outputs, head, 1.0)

    def row(self, label: str, moved: Moved, strength: float, head: CarriedHead | None) -> Candidate:
        """Return how often a target agrees with the fine-tune on held-out inputs, and with itself as it was
        on those of its old domain that were not learnt from.
        """
        kept = self._kept(moved, strength) if head is None else None
        return Candidate(label, strength, self._agreement(moved, strength, head), kept=kept)

    def _kept(self, moved: Moved, strength: float) -> float | None:
        plan, own = self.plan, self.own
        if own is None or plan.kept is None or plan.task not in ("classes", "values"):
            return None
        judged = self._keep(None).parts(self.settings.held_out, self.settings.seed)[1]
        with torch.no_grad(), shifted(plan.target.model.model, moved.dense, strength):
            now = plan.target_readout.all([plan.kept[row] for row in judged]).outputs
        assert now is not None
        return parallel.agreed(agreement(now.float().cpu(), own[judged], plan.task))

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
