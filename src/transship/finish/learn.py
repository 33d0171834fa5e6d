"""Teach a student without a label: the rate and the end are chosen on inputs that it does not learn from.

A finish is a row of runs from the same start. Each rate is tried first, and the best of them goes the whole
way unless the trials were as long. A run keeps what was best on the held-out inputs, its start included, so
that a finish that helps nobody changes nothing. Every draw depends on seed, lesson and step alone. A state on
disk holds what is learnt, Adam's moments and the scores: a killed finish goes on and ends in the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from transship import parallel
from transship.errors import NumericalError
from transship.finish.descent import Adam, follow_slope
from transship.finish.lessons import Lesson, Weights, batch_of
from transship.finish.movables import Movable, Tensors
from transship.finish.settings import Finish
from transship.finish.state import FinishState, RunFacts
from transship.numerics import chunks, derive_seed
from transship.progress import Progress, quiet

CHECKS = 10  # how often a run looks at the held-out inputs
PATIENCE = 6  # looks without a better score before it ends
JUDGED_AT_ONCE = 128
# of the largest step: the last tenth of a run hardly moves
_LAST = 0.05


@dataclass(frozen=True, eq=False)
class Finished:
    """What a finish gives.

    Attributes:
        learnt: what was learnt, as the movable names it.
        rate: of Adam; 0 where nothing moved.
        steps: until the best score.
        before: the held-out loss of the start.
        after: of what was learnt.
        curve: (step, held-out loss) of the last run.
        judged_by: held-out inputs; 0 where there were too few to spare some.
    """

    learnt: Tensors
    rate: float
    steps: int
    before: float
    after: float
    curve: tuple[tuple[int, float], ...] = ()
    judged_by: int = 0

    def summary(self) -> dict[str, object]:
        """Return all but the tensors, as plain data."""
        return {
            "rate": self.rate,
            "steps": self.steps,
            "held-out loss before": self.before,
            "held-out loss after": self.after,
            "judged by": self.judged_by,
        }


def finish(
    lessons: Sequence[Lesson],
    movable: Movable,
    settings: Finish,
    *,
    folder: Path | None = None,
    key: str = "",
    progress: Progress = quiet,
) -> Finished:
    """Teach the student that `movable` makes.

    Args:
        lessons: inputs with a teacher's outputs.
        movable: the student's weights as a function of what is learnt.
        settings: steps, rates and draws.
        folder: keeps the state of a finish that is killed; None keeps none.
        key: names models and inputs: the state of another finish is not gone on from.
        progress: told the steps.
    """
    start = movable.start()
    state = FinishState.resume(folder, f"{key} {settings}", start)
    work = _Work(lessons, movable, settings, state, progress)
    with torch.no_grad():
        before = work.judge(start)
    if not math.isfinite(before):
        raise NumericalError(
            "student or teacher say nothing finite",
            where="finish",
            fix="run them in float32, or do not finish",
        )
    if not settings.steps or not settings.rates or not start:
        return Finished(start, 0.0, 0, before, before)
    work.run_all(start, before)
    state.clear()
    best = work.best
    return Finished(best.learnt, best.rate, best.step, before, best.score, best.curve, work.judged_by)


@dataclass(frozen=True, eq=False)
class _Best:
    learnt: Tensors
    score: float
    rate: float = 0.0
    step: int = 0
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class _Work:
    lessons: Sequence[Lesson]
    movable: Movable
    settings: Finish
    state: FinishState
    progress: Progress
    best: _Best = field(init=False)
    steps_before: int = 0

    def __post_init__(self) -> None:
        share, seed = self.settings.held_out, self.settings.seed
        self.rows = [lesson.parts(share, seed) for lesson in self.lessons]
        self.judged_by = sum(len(judged) for learnt, judged in self.rows if learnt != judged)

    def run_all(self, start: Tensors, before: float) -> None:
        """Try the rates, and take the best of them for the whole way."""
        settings = self.settings
        self.best = _Best(start, before)
        rates, trial = settings.rates, settings.trial
        scores: list[float] = []
        for number, rate in enumerate(rates if trial else ()):
            outcome = self._run(number, rate, trial, start, before)
            scores.append(outcome.score)
            if outcome.score < self.best.score:
                self.best = outcome
        if trial == settings.steps:
            return
        rate = rates[min(range(len(scores)), key=scores.__getitem__)] if scores else rates[0]
        outcome = self._run(len(scores), rate, settings.steps, start, before)
        if outcome.score < self.best.score:
            self.best = outcome

    @torch.no_grad()
    def judge(self, learnt: Mapping[str, Tensor]) -> float:
        """Return the loss over the held-out inputs of all lessons, the same in every process."""
        weights = self.movable.weights(learnt)
        total = 0.0
        for lesson, (_, judged) in zip(self.lessons, self.rows, strict=True):
            for number, part in enumerate(chunks(len(judged), JUDGED_AT_ONCE)):
                if parallel.mine(number):
                    rows = judged[part]
                    total += float(lesson.loss(weights, rows)) * len(rows) / len(judged)
        return parallel.agreed(sum(parallel.gather(total)) / max(1, len(self.lessons)))

    def _run(self, number: int, rate: float, steps: int, start: Tensors, before: float) -> _Best:
        """Return the best of one run; one that was done before a kill is taken from the state."""
        what = f"finish, rate {rate:g}"
        if (done := self.state.outcome(number)) is not None:
            facts, learnt = done
            return _Best(learnt, facts.score, rate, facts.step, facts.curve)
        learnt = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        optimiser = Adam(learnt.values(), rate)
        facts, best, curve = RunFacts(number, 0, before, 0), start, [(0, before)]
        if self.state.running(number):
            facts, best = self.state.go_on(learnt, optimiser)
            curve = list(facts.curve)
        every = max(1, -(-steps // CHECKS))
        self.progress(what, facts.done, steps)
        for step in range(facts.done, steps):
            loss = self._step(learnt, optimiser, step, _factor(step, steps))
            score, where = facts.score, facts.step
            if (step + 1) % every == 0 or step + 1 == steps:
                judged = self.judge(learnt) if math.isfinite(loss) else math.inf
                curve.append((step + 1, judged))
                if judged < score:
                    score, where = judged, step + 1
                    best = {name: tensor.detach().clone() for name, tensor in learnt.items()}
            facts = RunFacts(number, step + 1, score, where, tuple(curve))
            self.progress(what, step + 1, steps)
            if not math.isfinite(loss) or step + 1 - where >= PATIENCE * every:
                break
            self.state.save(facts, learnt, optimiser, best)
        self.progress(what, steps, steps)
        self.state.end(facts, best)
        return _Best(best, facts.score, rate, facts.step, facts.curve)

    def _step(self, learnt: Tensors, optimiser: Adam, step: int, factor: float) -> float:
        settings, summands = self.settings, []
        for place, turn in self._turns(step):
            lesson, rows = self.lessons[place], self.rows[place][0]
            batch = batch_of(rows, settings.batch_size, turn, settings.seed, lesson.name)
            summands.append(partial(_share_of, lesson, batch))
        return follow_slope(
            list(learnt.values()), partial(self.movable.weights, learnt), summands, optimiser, factor
        )

    def _turns(self, step: int) -> list[tuple[int, int]]:
        """Return the lessons of a step, and how often each had its turn before."""
        count = len(self.lessons)
        size = min(self.settings.lessons or count, count)
        if size == count:
            return [(place, step) for place in range(count)]
        per_pass = count // size
        passes, turn = divmod(step, per_pass)
        generator = torch.Generator().manual_seed(derive_seed(self.settings.seed, "lessons", passes))
        order = torch.randperm(count, generator=generator).tolist()
        return [(place, passes) for place in order[turn * size : (turn + 1) * size]]


def _share_of(lesson: Lesson, batch: Sequence[int], weights: Weights) -> Tensor | None:
    """Return this process's summands of a lesson's mean loss over a batch."""
    own = list(parallel.share(batch))
    return lesson.loss(weights, own) * (len(own) / len(batch)) if own else None


def _factor(step: int, steps: int) -> float:
    """Return the factor of the rate: up over a twentieth of the steps, then down along a cosine."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    way = (step - warm) / max(1, steps - warm)
    return _LAST + (1 - _LAST) * 0.5 * (1 + math.cos(math.pi * way))
