"""Which method to take, found without labels: agreement with the fine-tuned source on inputs that no map has
seen, where the data has enough of them.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from transship import parallel
from transship.activations.readout import Readout
from transship.errors import MatchError, OptionError
from transship.registry import build_method
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.judge import Choice, Judge
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.moved import Moved
from transship.verbs.transport.plan import comparable
from transship.verbs.transport.protocol import TransportMethod
from transship.verbs.transport.result import Candidate, Result
from transship.verbs.transport.token_judge import TokenJudge
from transship.verbs.transport.weights import Kinship, shifted

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work

# A head that replaces the target's own must be worth what it costs elsewhere.
CARRY_MARGIN = 0.02
_FITTED = (
    "methods were compared on {} of the inputs that maps were fitted on, because too few were left over: "
    "more rows in DATA, or fewer --batches, leave some"
)
_Tried = tuple[Candidate, TransportMethod, Moved, Choice]


def choose_method(work: "Work", keep: Any) -> Result:
    """Try identity (for relatives of one shape), theseus and gradient, each with and without a carried
    head.
    """
    task = work.task
    if not comparable(work):
        method = build_method("transport", "theseus")
        moved, choice = work.move_and_choose(method)
        note = "theseus was taken: two vocabularies are not compared, so methods cannot be told apart"
        return work.result(method, moved, choice, None, notes=[note, *_unkept(keep)])
    found = work.kinship()
    tried, left_out = _try_all(work, _bodies(found))
    candidate, method, moved, choice = _best(tried)
    head: CarriedHead | None = work.head(method, moved, choice, keep) if isinstance(method, Carry) else None
    listed = [one[0] for one in tried]
    notes = [found.sentence(), _explanation(candidate, listed, work), *left_out]
    if work.draws.held_out_fitted:
        notes.append(_FITTED.format(len(work.draws.held_out)))
    if head is None:
        notes += _unkept(keep)
    baselines = _baselines(work, method, choice, _heads(work, task)[0])
    result = work.result(method, moved, choice, head, [*baselines, *listed], notes)
    which = "calibration" if work.draws.held_out_fitted else "held-out"
    metrics = {**result.metrics, f"agreement on {which} inputs": candidate.agreement}
    return dataclasses.replace(result, metrics=metrics, compared_on=_compared_on(work))


def _try_all(work: "Work", bodies: list[str]) -> tuple[list[_Tried], list[str]]:
    """Return what every method gives, and a sentence for each that gives nothing."""
    tried: list[_Tried] = []
    left_out = []
    for name in bodies:
        kept: dict[str, Moved] = {}
        for carried in _heads(work, work.task):
            used: TransportMethod = build_method("transport", name)
            if carried:
                used = Carry(body=name)  # type: ignore[arg-type]
            label = f"carry, body {name}" if carried else name
            try:
                moved, choice = _moved(work, used, kept)
            except (MatchError, OptionError) as error:
                left_out.append(f"'{label}' was left out: {error}")
                continue
            if not moved.dense:
                left_out.append(f"'{label}' was left out: it moves nothing between these models")
                continue
            agreement = _held_out(work, moved, choice, carried)
            validation = choice.score if choice.by == "validation" else None
            tried.append((Candidate(label, choice.strength, agreement, validation), used, moved, choice))
    return tried, left_out


def _unkept(keep: Any) -> list[str]:
    """Say that inputs to keep were of no use to a method that carries no head."""
    if keep is None:
        return []
    return ["--keep was not used: the method that was taken leaves the target's own head in place"]


def _compared_on(work: "Work") -> str:
    """Say which inputs methods were compared on."""
    count = len(work.draws.held_out)
    if work.draws.held_out_fitted:
        return f"{count} of the inputs that maps were fitted on: too few were left over"
    return f"{count} inputs that no map or head was fitted on"


def _moved(work: "Work", method: TransportMethod, kept: dict[str, Moved]) -> tuple[Moved, Choice]:
    """Return what a method moves and its strength; the same update serves with and without a head, but a path
    is walked for each.
    """
    if work.settings.path_steps > 1:
        return work.move_and_choose(method)
    if "moved" not in kept:
        kept["moved"] = work.move(method)
    return kept["moved"], work.strength(kept["moved"], carried=isinstance(method, Carry))


def _bodies(found: Kinship) -> list[str]:
    """The methods worth trying; `identity` needs one shape and is first among relatives."""
    others = ["theseus", "gradient"]
    return ["identity", *others] if found.cosines else others


def _heads(work: "Work", task: str) -> list[bool]:
    """With and without a carried head; a bare fine-tune and a vocabulary have none, a bare target needs
    one.
    """
    if task in ("features", "language"):
        return [False]
    return [False, True] if work.own_head() else [True]


def _held_out(work: "Work", moved: Moved, choice: Choice, carried: bool) -> float:
    """Agreement with the fine-tuned source on the held-out inputs: neither maps nor heads were fitted on
    them, where enough rows were left over.
    """
    judge = _held_out_judge(work, work.own_head() and not carried)
    with shifted(work.target.model.model, moved.dense, choice.strength):
        return parallel.agreed(judge.score())


def _held_out_judge(work: "Work", own: bool) -> Judge | TokenJudge:
    readout, task = Readout(work.target.model), work.task
    held, head = work.draws.held_out, work.draws.head
    if task in ("tokens", "language"):
        fitted = None if own else work.token_teacher(head)
        size = work.settings.batch_size
        return TokenJudge(readout, work.token_teacher(held), own, fitted, batch_size=size)
    fit = None if own or task == "features" else (head, work.taught(head))
    return Judge(readout, held, work.taught(held), task, own, fit)


def _baselines(
    work: "Work", method: TransportMethod, choice: Choice, bare_target_is_carried: bool
) -> list[Candidate]:
    """What the choice must be held against: the target as it is, with its own head and with a carried one
    where the chosen method carries one, and a random update through the same maps at the same strength.
    """
    carried = isinstance(method, Carry)
    rows = []
    for headed in dict.fromkeys((bare_target_is_carried, carried)):
        label = "untouched target, carry" if headed else "untouched target"
        still = Choice(0.0, (), "given")
        rows.append(Candidate(label, 0.0, _held_out(work, Moved(), still, headed), None))
    noise = work.move(build_method("transport", "random-aligned"))
    label = "random-aligned, carry" if carried else "random-aligned"
    rows.append(Candidate(label, choice.strength, _held_out(work, noise, choice, carried), None))
    return rows


def _best(tried: list[_Tried]) -> _Tried:
    if not tried:
        raise MatchError(
            "no method can move anything between these models",
            where="transport",
            fix="look at `transship compare` of the two",
        )
    plain = [one for one in tried if not isinstance(one[1], Carry)]
    headed = [one for one in tried if isinstance(one[1], Carry)]
    best_plain = max(plain, key=lambda one: one[0].agreement, default=None)
    best_headed = max(headed, key=lambda one: one[0].agreement, default=None)
    if best_plain is None or best_headed is None:
        found = best_plain or best_headed
        assert found is not None
        return found
    worth = best_headed[0].agreement > best_plain[0].agreement + CARRY_MARGIN
    return best_headed if worth else best_plain


def _explanation(best: Candidate, tried: list[Candidate], work: "Work") -> str:
    task, which = work.task, "calibration" if work.draws.held_out_fitted else "new"
    others = [one for one in tried if one is not best]
    second = max(others, key=lambda one: one.agreement, default=None)
    if task in ("values", "features"):
        what = "its outputs rank" if task == "values" else "its similarities rank"
        text = f"{what} {which} inputs like the fine-tuned source's, correlation {best.agreement:.3f}"
        beside = "" if second is None else f"; '{second.method}' has {second.agreement:.3f}"
    else:
        kind = "inputs" if task == "classes" else "inputs' tokens"
        text = f"it agrees with the fine-tuned source on {100 * best.agreement:.1f} % of {which} {kind}"
        beside = "" if second is None else f", '{second.method}' on {100 * second.agreement:.1f} %"
    return f"'{best.method}' was taken: {text}{beside}"
