"""Apply a method: move the update, in parts where that is asked for, and choose its strength.

With path steps, part k of K moves τ_A/K through maps between A + (k/K) τ_A and B + α (what was moved so far).
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from transship import parallel
from transship.progress import Progress, quiet
from transship.verbs.transport.account import Choice
from transship.verbs.transport.heads import CarriedHead, carry_head
from transship.verbs.transport.move import Moved, move
from transship.verbs.transport.pace import Budget
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import TransportMethod
from transship.verbs.transport.result import Result, result_of
from transship.verbs.transport.statistics import Prepared, collect_statistics
from transship.verbs.transport.teacher import AnyTeacher, Teacher
from transship.verbs.transport.weights import shifted

# whenever it is done
NO_BUDGET = Budget()
# doublings that score worse than the best before the search ends: curves may dip before they rise
PATIENCE = 3
# `auto` walks the path at the first of these multiples of the best single step's strength, and at the second
# too where the first is no better than that single step. What was moved so far does less in a strange target
# than in the source, so maps between states that have come equally far need a longer stride; in a twin the
# stride is 1. Chosen on networks and tasks apart from the suite's, by validation and by agreement.
WALKS = (2.0, 1.0)
# the search goes on to this strength at least
REACH = 2.0
# strengths that are tried whatever the budget
LEAST_TRIED = 4
# how the whole is rescaled at the end, relative to the strength that the path was walked with
RESCALE = (0.0, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.5)


def apply(plan: Plan, prepared: Prepared, method: TransportMethod, *, progress: Progress = quiet) -> Result:
    """Move the update with a method, at the best strength or the one that was given, and fit a head if it
    asks for one.
    """
    moved, choice = move_and_choose(plan, prepared, method, progress=progress)
    head = None
    if method.needs.head:
        head = fit_head(plan, prepared, method.needs.penalty, moved, choice.strength)
    return result_of(plan, method, moved, choice, head)


def move_and_choose(
    plan: Plan,
    prepared: Prepared,
    method: TransportMethod,
    *,
    untouched: float | None = None,
    budget: Budget = NO_BUDGET,
    progress: Progress = quiet,
) -> tuple[Moved, Choice]:
    """Return the moved update and its strength; `untouched` is the score at strength 0, where it is known."""
    body, carried = method.body_method, method.needs.head
    if body is None:
        return Moved(), choose_strength(plan, prepared, Moved(), carried=carried)
    moved = move(plan, prepared.statistics, body)
    choice = choose_strength(
        plan, prepared, moved, carried=carried, untouched=untouched, budget=budget, progress=progress
    )
    if plan.settings.path_steps == 1 or not budget.allows():
        return moved, choice
    return _move_along_path(plan, prepared, method, (moved, choice), budget, progress)


def fit_head(
    plan: Plan, prepared: Prepared, penalty: float | None, moved: Moved, strength: float
) -> CarriedHead:
    """Fit a head on the target with an update at a strength."""
    assert prepared.head_teacher is not None
    with shifted(plan.target.model.model, moved.dense, strength):
        return carry_head(
            plan.target_readout, plan.tuned_readout, prepared.head_teacher, penalty, keep=plan.kept
        )


def choose_strength(
    plan: Plan,
    prepared: Prepared,
    moved: Moved,
    *,
    carried: bool,
    grid: Sequence[float] | None = None,
    untouched: float | None = None,
    budget: Budget = NO_BUDGET,
    progress: Progress = quiet,
) -> Choice:
    """Return the strength as given, or the best of a grid (the settings' with patience, or all of another).

    It is chosen by validation labels that are the fine-tune's own answers, otherwise by agreement with it on
    the calibration inputs.
    """
    if plan.settings.strength != "auto":
        return Choice(float(plan.settings.strength), (), "given")
    if not moved.dense:
        return Choice(1.0, (), "given")
    own, by = plan.own_head and not carried, "agreement"
    judged, fit = prepared.teacher, None
    if isinstance(plan.labels, Tensor):
        assert plan.draws.validation is not None
        by, fit = "validation", None if own else prepared.teacher
        judged = Teacher(plan.task, plan.draws.validation, plan.labels)
    assert judged is not None
    strength, curve = search(
        plan.target.model.model,
        moved.dense,
        partial(score, plan, judged, own_head=own, fit=fit),
        grid=plan.settings.grid if grid is None else grid,
        whole=grid is not None,
        untouched=untouched,
        budget=budget,
        progress=progress,
    )
    return Choice(strength, curve, by)


def score(plan: Plan, judged: AnyTeacher, *, own_head: bool, fit: AnyTeacher | None) -> float:
    """Return how well the target, as it stands, does what the fine-tuned source does."""
    return parallel.agreed(judged.score(plan.target_readout, own_head=own_head, fit=fit))


def search(
    model: nn.Module,
    update: Mapping[str, Tensor],
    score: Callable[[], float],
    *,
    grid: Sequence[float],
    whole: bool = False,
    untouched: float | None = None,
    budget: Budget = NO_BUDGET,
    progress: Progress = quiet,
) -> tuple[float, tuple[tuple[float, float], ...]]:
    """Return the best strength of the grid, the smallest of equals, and (strength, score) in rising order.

    First those that double, until `PATIENCE` of them scored worse, then the neighbours of the best.

    Args:
        model: the target.
        update: at strength 1.
        score: of the target as it stands.
        grid: the strengths.
        whole: whether all of them are tried.
        untouched: the score at strength 0, where it is known.
        budget: when it has to end.
        progress: told how many were tried.
    """
    strengths = sorted(grid)
    curve: dict[float, float] = {}
    rising = strengths if whole else doublings(strengths)

    def stop() -> bool:
        return len(curve) >= LEAST_TRIED and not budget.allows()

    def try_at(strength: float) -> None:
        progress("strength", len(curve), len(strengths))
        if strength == 0.0 and untouched is not None:
            curve[strength] = untouched
            return
        with shifted(model, update, strength):
            curve[strength] = score()

    for strength in rising:
        try_at(strength)
        if stop() or (not whole and strength >= REACH and _worse(curve) >= PATIENCE):
            break
    for strength in () if whole else beside(strengths, best_of(curve)):
        if strength not in curve and not stop():
            try_at(strength)
    progress("strength", len(strengths), len(strengths))
    return best_of(curve), tuple(sorted(curve.items()))


def _worse(curve: Mapping[float, float]) -> int:
    """Return how many strengths beyond the best scored worse."""
    best = best_of(curve)
    return sum(strength > best and value < curve[best] for strength, value in curve.items())


def doublings(strengths: Sequence[float]) -> list[float]:
    """Return 0 and below, the last strength up to 1/2, and those of the rest that are at least twice the one
    before: of few strengths all.
    """
    if len(strengths) <= LEAST_TRIED + 1:
        return list(strengths)
    small = [strength for strength in strengths if 0 < strength <= 0.5]
    chosen = [strength for strength in strengths if strength <= 0] + small[-1:]
    for strength in strengths:
        if strength > 0.5 and (chosen[-1:] <= [0] or strength >= 2 * chosen[-1]):
            chosen.append(strength)
    return chosen


def beside(strengths: Sequence[float], best: float) -> list[float]:
    """Return the strengths next to one of them."""
    place = list(strengths).index(best)
    return [*strengths[max(0, place - 1) : place], *strengths[place + 1 : place + 2]]


def best_of(curve: Mapping[float, float]) -> float:
    """Return the strength with the best score, the smallest of equals."""
    top = max(curve.values())
    return min(strength for strength, value in curve.items() if value >= top - 1e-12)


def _move_along_path(
    plan: Plan,
    prepared: Prepared,
    method: TransportMethod,
    first: tuple[Moved, Choice],
    budget: Budget,
    progress: Progress,
) -> tuple[Moved, Choice]:
    """Return the update moved in `path_steps` parts, and its strength; `first` is that of a single step.

    A strength that is given is also the stride of the walk. With `auto` the path is walked at `WALKS` times
    the best strength of a single step, and each result is rescaled.
    """
    body, carried = method.body_method, method.needs.head
    assert body is not None
    moved, start = first
    if plan.settings.strength != "auto":
        return _walk(plan, prepared, body, start.strength, moved, progress), start
    untouched = dict(start.curve).get(0.0)
    walks: list[tuple[Moved, Choice]] = []
    for stride in WALKS:
        walked = stride * (start.strength if start.strength > 0 else 1.0)
        total = _walk(plan, prepared, body, walked, moved, progress)
        grid = [walked * factor for factor in RESCALE]
        choice = choose_strength(
            plan,
            prepared,
            total,
            carried=carried,
            grid=grid,
            untouched=untouched,
            budget=budget,
            progress=progress,
        )
        walks.append((total, choice))
        if choice.score > start.score or not budget.allows():
            break
    return max(walks, key=lambda walk: walk[1].score)


def _walk(
    plan: Plan,
    prepared: Prepared,
    method: TransportMethod,
    strength: float,
    first: Moved,
    progress: Progress,
) -> Moved:
    """Return the sum of the parts; `first` is the whole update moved where both models stand now."""
    steps, changes = plan.settings.path_steps, plan.source_changes()
    total = {name: change / steps for name, change in first.dense.items()}
    for step in range(1, steps):
        with contextlib.ExitStack() as stack:
            stack.enter_context(shifted(plan.source.model.model, changes, step / steps))
            stack.enter_context(shifted(plan.target.model.model, total, strength))
            statistics = collect_statistics(
                plan, method.needs, prepared.teacher, saved=False, progress=progress
            )
        for name, change in move(plan, statistics, method).dense.items():
            part = 1.0 / steps * change
            total[name] = total[name] + part if name in total else part
    return Moved(total, {}, first.layers, first.left)
