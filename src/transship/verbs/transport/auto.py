"""Which method to take, found without labels: agreement with the fine-tuned source on inputs that no map has
seen, where the data has enough of them.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import transship
from transship import parallel
from transship.atomic import atomic_file, write_json
from transship.errors import MatchError, OptionError
from transship.progress import Progress, duration, quiet
from transship.verbs.transport.account import Candidate, Choice
from transship.verbs.transport.move import Moved, move
from transship.verbs.transport.pace import Budget
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import TransportMethod, parts_of
from transship.verbs.transport.result import Result, result_of
from transship.verbs.transport.runner import (
    apply,
    choose_strength,
    fit_head,
    move_and_choose,
    score,
)
from transship.verbs.transport.statistics import Prepared, prepare
from transship.verbs.transport.weights import shifted

# settings that decide a candidate's strength beside those that name the plan's folder
_DECIDING = ("strength", "path_steps", "head_inputs", "validation", "grid", "roles")
# A head that replaces the target's own must be worth what it costs elsewhere.
CARRY_MARGIN = 0.02
_FITTED = (
    "methods were compared on {} of the inputs that maps were fitted on, because too few were left over: "
    "more rows in DATA, or fewer --batches, leave some"
)


@dataclass(frozen=True)
class Finding:
    """What is known of one candidate.

    Attributes:
        choice: its strength.
        agreement: with the fine-tuned source on the held-out inputs.
        walked: the update by parameter, where it was moved in parts.
    """

    choice: Choice
    agreement: float
    walked: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class SavedTrials:
    """The findings of one plan.

    Attributes:
        folder: where they are; None keeps none.
        about: what they depend on.
    """

    folder: Path | None
    about: str

    @classmethod
    def of(cls, plan: Plan) -> "SavedTrials":
        settings = {name: repr(getattr(plan.settings, name)) for name in _DECIDING}
        labels = plan.labels.tolist() if isinstance(plan.labels, Tensor) else None
        about = json.dumps([settings, labels, transship.__version__], sort_keys=True)
        return cls(None if plan.folder is None else plan.folder / "trials", about)

    def read(self, label: str) -> Finding | None:
        """Return what an earlier run found of a candidate, or None; every process reads the same."""
        file = self._file(label)
        if file is None or not parallel.agreed(file.is_file()):
            return None
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            curve = tuple((float(strength), float(score)) for strength, score in saved["curve"])
            choice = Choice(float(saved["strength"]), curve, str(saved["by"]))
            tensors = file.with_suffix(".safetensors")
            walked = load_file(tensors) if saved["walked"] else None
            return Finding(choice, float(saved["agreement"]), walked)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return None  # damaged: found anew

    def write(self, label: str, finding: Finding) -> None:
        file = self._file(label)
        if file is None or not parallel.is_main():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        if finding.walked is not None:
            tensors = {name: change.contiguous() for name, change in finding.walked.items()}
            with atomic_file(file.with_suffix(".safetensors"), force=True) as place:
                save_file(tensors, place)
        choice = dataclasses.asdict(finding.choice)
        write_json(
            file,
            {**choice, "agreement": finding.agreement, "walked": finding.walked is not None},
            force=True,
        )

    def _file(self, label: str) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.sha256(f"{self.about}\n{label}".encode()).hexdigest()
        return self.folder / f"{digest[:16]}.json"


@dataclass(frozen=True, eq=False)
class Trial:
    """What one method gave.

    Attributes:
        candidate: its row of the comparison.
        method: with its parameters.
        prepared: what it read.
        moved: the update that it moved.
        choice: its strength.
    """

    candidate: Candidate
    method: TransportMethod
    prepared: Prepared
    moved: Moved
    choice: Choice

    @property
    def agreement(self) -> float:
        """With the fine-tuned source, on the inputs that methods are compared on."""
        return self.candidate.agreement


def choose_method(plan: Plan, *, progress: Progress = quiet) -> tuple[Result, Prepared]:
    """Try what declares a place in `auto`, each with and without a carried head; return the best, and what it
    read. What an earlier run found of the same candidates is taken from the plan's folder.
    """
    if not plan.comparable:
        return _uncompared(plan, progress)
    comparison = _Comparison(plan, Budget.of(plan.settings.budget, plan.following_seconds()), progress)
    candidates = plan.candidates()
    for number, candidate in enumerate(candidates):
        comparison.add(*candidate, f"{number + 1} of {len(candidates)}")
    best = _best(comparison.trials)
    return _result(plan, best, comparison.trials, comparison.left_out, progress), best.prepared


def _uncompared(plan: Plan, progress: Progress) -> tuple[Result, Prepared]:
    """Return the first candidate that moves between any shapes: nothing tells methods apart."""
    method = next(method for method in parts_of("candidate") if not method.needs.same_shape)
    prepared = prepare(plan, method, progress=progress)
    result = apply(plan, prepared, method, progress=progress)
    why = "two vocabularies are not compared, so methods cannot be told apart"
    notes = [f"{method.name} was taken: {why}", *_unkept(plan), *result.notes]
    return dataclasses.replace(result, notes=notes), prepared


class _Comparison:
    """Trials of candidates, one after another.

    Attributes:
        trials: what was tried.
        left_out: a sentence for each candidate that gave nothing.
    """

    def __init__(self, plan: Plan, budget: Budget, progress: Progress) -> None:
        self.plan, self.budget, self.progress = plan, budget, progress
        self.saved = SavedTrials.of(plan)
        self.trials: list[Trial] = []
        self.left_out: list[str] = []
        self.alone: dict[str, Moved] = {}

    def add(self, label: str, method: TransportMethod, body: TransportMethod, which: str) -> None:
        """Add what a method gives; or a sentence where it gives nothing."""
        known, finding = self.trials[-1].prepared if self.trials else None, self.saved.read(label)
        if finding is None and self.trials and not self.budget.allows(self.plan.choosing_seconds(method)):
            minutes = duration(60.0 * (self.plan.settings.budget or 0.0))
            self.left_out.append(f"'{label}' was left out: the budget of {minutes} leaves it no time")
            return
        progress = self._told(label, which)
        try:
            prepared = prepare(self.plan, method, comparing=True, known=known, progress=progress)
            moved, choice = self._moved(method, body, prepared, finding, progress)
        except (MatchError, OptionError) as error:
            self.left_out.append(f"'{label}' was left out: {error}")
            return
        if not moved.dense:
            self.left_out.append(f"'{label}' was left out: it moves nothing between these models")
            return
        if finding is None:
            finding = self._found(label, method, prepared, moved, choice)
        validation = choice.score if choice.by == "validation" else None
        candidate = Candidate(label, choice.strength, finding.agreement, validation)
        self.trials.append(Trial(candidate, method, prepared, moved, choice))

    def _moved(
        self,
        method: TransportMethod,
        body: TransportMethod,
        prepared: Prepared,
        finding: Finding | None,
        progress: Progress,
    ) -> tuple[Moved, Choice]:
        plan, carried = self.plan, method.needs.head
        given: dict[str, Any] = {
            "untouched": _untouched(self.trials, carried=carried),
            "budget": self.budget,
            "progress": progress,
        }
        if plan.settings.path_steps > 1 and finding is None:  # a path is walked for each
            return move_and_choose(plan, prepared, method, **given)
        moved = self.alone.get(body.name) or move(plan, prepared.statistics, body)
        self.alone[body.name] = moved
        if finding is None:
            return moved, choose_strength(plan, prepared, moved, carried=carried, **given)
        walked = finding.walked
        return (moved if walked is None else Moved(walked, {}, moved.layers, moved.left)), finding.choice

    def _found(
        self, label: str, method: TransportMethod, prepared: Prepared, moved: Moved, choice: Choice
    ) -> Finding:
        agreement = _held_out(self.plan, prepared, moved, choice.strength, carried=method.needs.head)
        walked = dict(moved.dense) if self.plan.settings.path_steps > 1 else None
        finding = Finding(choice, agreement, walked)
        if self.budget.allows():  # a search that was cut short is not what a longer one finds
            self.saved.write(label, finding)
        return finding

    def _told(self, label: str, which: str) -> Progress:
        """Return the progress of one candidate, which says what is known so far."""
        best = max(self.trials, key=lambda trial: trial.agreement, default=None)
        known = "" if best is None else f", best so far {best.candidate.method} {best.agreement:.4f}"
        return lambda what, done, total: self.progress(
            f"candidate {which}, {label}{known}: {what}", done, total
        )


def _untouched(trials: list[Trial], *, carried: bool) -> float | None:
    """Return what the untouched target scored in an earlier trial."""
    scores = [dict(trial.choice.curve).get(0.0) for trial in trials if trial.method.needs.head == carried]
    return next((value for value in scores if value is not None), None)


def _held_out(plan: Plan, prepared: Prepared, moved: Moved, strength: float, *, carried: bool) -> float:
    """Return the agreement with the fine-tuned source on the held-out inputs: neither maps nor heads were
    fitted on them, where enough rows were left over.
    """
    own = plan.own_head and not carried
    assert prepared.held_out_teacher is not None
    with shifted(plan.target.model.model, moved.dense, strength):
        fit = None if own else prepared.head_teacher
        return score(plan, prepared.held_out_teacher, own_head=own, fit=fit)


def _best(trials: list[Trial]) -> Trial:
    if not trials:
        raise MatchError(
            "no method can move anything between these models",
            where="transport",
            fix="look at `transship compare` of the two",
        )
    plain = [trial for trial in trials if not trial.method.needs.head]
    headed = [trial for trial in trials if trial.method.needs.head]
    if not plain or not headed:
        return max(plain or headed, key=lambda trial: trial.agreement)
    best_plain, best_headed = (max(some, key=lambda trial: trial.agreement) for some in (plain, headed))
    return best_headed if best_headed.agreement > best_plain.agreement + CARRY_MARGIN else best_plain


def _result(plan: Plan, best: Trial, trials: list[Trial], left_out: list[str], progress: Progress) -> Result:
    """Return the best, with the others and what it must be held against."""
    kin, draws = plan.kinship, plan.draws
    assert kin is not None
    head = None
    if best.method.needs.head:
        needs, strength = best.method.needs, best.choice.strength
        head = fit_head(plan, best.prepared, needs.penalty, best.moved, strength)
    notes = [kin.sentence(), _explanation(plan, best, trials), *left_out]
    if draws.held_out_fitted:
        notes.append(_FITTED.format(len(draws.held_out)))
    if head is None:
        notes += _unkept(plan)
    candidates = [*_baselines(plan, best, trials, progress), *(trial.candidate for trial in trials)]
    result = result_of(plan, best.method, best.moved, best.choice, head, candidates, notes)
    which = "calibration" if draws.held_out_fitted else "held-out"
    metrics = {**result.metrics, f"agreement on {which} inputs": best.agreement}
    return dataclasses.replace(result, metrics=metrics, compared_on=compared_on(plan))


def _baselines(plan: Plan, best: Trial, trials: list[Trial], progress: Progress) -> list[Candidate]:
    """What the choice must be held against: the target as it is, with its own head and with a carried one
    where the chosen method carries one, and the controls at the same strength.
    """
    carried, bare = best.method.needs.head, None not in plan.heads()
    headed = ", ".join([head.name for head in parts_of("head")])
    prepared, rows = best.prepared, []
    for with_head in dict.fromkeys((bare, carried)):
        label = f"untouched target, {headed}" if with_head else "untouched target"
        rows.append(Candidate(label, 0.0, _held_out(plan, prepared, Moved(), 0.0, carried=with_head)))
    for control in parts_of("control"):
        read = prepare(plan, control, known=trials[-1].prepared, progress=progress)
        noise = move(plan, read.statistics, control)
        strength = best.choice.strength
        label = f"{control.name}, {headed}" if carried else control.name
        rows.append(Candidate(label, strength, _held_out(plan, prepared, noise, strength, carried=carried)))
    return rows


def _unkept(plan: Plan) -> list[str]:
    """Say that inputs to keep were of no use to a method that carries no head."""
    if plan.kept is None or plan.settings.finish != "none":  # a finish keeps, or says that it did not
        return []
    return ["--keep was not used: the method that was taken leaves the target's own head in place"]


def compared_on(plan: Plan) -> str:
    """Say which inputs methods were compared on."""
    count = len(plan.draws.held_out)
    if plan.draws.held_out_fitted:
        return f"{count} of the inputs that maps were fitted on: too few were left over"
    return f"{count} inputs that no map or head was fitted on"


def _explanation(plan: Plan, best: Trial, trials: list[Trial]) -> str:
    task, which = plan.task, "calibration" if plan.draws.held_out_fitted else "new"
    others = [trial for trial in trials if trial is not best]
    second = max(others, key=lambda trial: trial.agreement, default=None)
    if task in ("values", "features"):
        what = "its outputs rank" if task == "values" else "its similarities rank"
        text = f"{what} {which} inputs like the fine-tuned source's, correlation {best.agreement:.3f}"
        beside = "" if second is None else f"; '{second.candidate.method}' has {second.agreement:.3f}"
    else:
        kind = "inputs" if task == "classes" else "inputs' tokens"
        text = f"it agrees with the fine-tuned source on {100 * best.agreement:.1f} % of {which} {kind}"
        beside = "" if second is None else f", '{second.candidate.method}' on {100 * second.agreement:.1f} %"
    return f"'{best.candidate.method}' was taken: {text}{beside}"
