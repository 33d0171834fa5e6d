"""The laws of a finish, on students small enough to solve by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from transship.errors import NumericalError
from transship.finish import state as states
from transship.finish.learn import finish
from transship.finish.lessons import Lesson, divergence, squared_error
from transship.finish.movables import Strengths, Weights
from transship.finish.settings import Finish

WEIGHTS = Finish(moves="weights", steps=60, rates=(0.01, 0.1), batch_size=16)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def lesson(
    teacher: Tensor, *, name: str = "task", seed: int = 0, rows: int = 80, weight: float = 1.0
) -> Lesson:
    """A linear student that is asked for a linear teacher's answers."""
    inputs = normal(rows, teacher.shape[1], seed=seed)

    def read(weights, numbers):
        chosen = inputs[list(numbers)]
        return chosen @ weights["w"].T, chosen @ teacher.T

    return Lesson(name, rows, read, divergence, weight)


class KilledError(Exception):
    """Stands for a kill."""


def killing(after: int):
    def progress(what: str, done: int, total: int) -> None:
        progress.calls += 1
        if progress.calls == after:
            raise KilledError

    progress.calls = 0
    return progress


def test_no_steps_change_nothing():
    start = normal(4, 3, seed=5)
    settings = Finish(moves="weights", steps=0, rates=(0.1,))
    outcome = finish([lesson(normal(4, 3))], Weights({"w": start}), settings)
    assert torch.equal(outcome.learnt["w"], start)
    assert (outcome.steps, outcome.before) == (0, outcome.after)


def test_a_student_that_knows_already_stays_as_it_is():
    teacher = normal(4, 3)
    outcome = finish([lesson(teacher)], Weights({"w": teacher}), WEIGHTS)
    assert torch.equal(outcome.learnt["w"], teacher)
    assert outcome.rate == 0.0


def test_a_solvable_student_comes_far_closer_and_what_it_gives_is_what_scored():
    own = lesson(normal(4, 3))
    outcome = finish([own], Weights({"w": torch.zeros(4, 3)}), WEIGHTS)
    assert outcome.after < 0.2 * outcome.before
    judged = own.parts(WEIGHTS.held_out, WEIGHTS.seed)[1]
    assert float(own.loss(outcome.learnt, judged)) == pytest.approx(outcome.after, rel=1e-4)
    assert outcome.judged_by == len(judged) == 16


def test_rates_are_told_apart_by_inputs_that_nothing_was_learnt_from():
    settings = Finish(moves="weights", steps=30, rates=(1e-6, 0.1), batch_size=16)
    outcome = finish([lesson(normal(4, 3))], Weights({"w": torch.zeros(4, 3)}), settings)
    assert outcome.rate == 0.1


def test_strengths_find_the_multiple_of_an_update_that_the_teacher_has():
    base, change = normal(4, 3, seed=1), normal(4, 3, seed=2)
    rows = torch.tensor([0.5, 2.0, 1.0, 1.5])
    settings = Finish(moves="row", steps=200, rates=(0.1,), batch_size=32)
    target = base + rows[:, None] * change
    inputs = normal(120, 3)

    def read(weights, numbers):
        return inputs[list(numbers)] @ weights["w"].T, inputs[list(numbers)] @ target.T

    squares = Lesson("task", 120, read, squared_error(1.0))
    outcome = finish([squares], Strengths({"w": base}, {"w": change}, per="row"), settings)
    torch.testing.assert_close(outcome.learnt["w"], rows, rtol=0.0, atol=0.1)


def test_a_lesson_that_weighs_more_is_learnt_better():
    result, other = normal(4, 3, seed=1), normal(4, 3, seed=2)
    losses = []
    for weight in (0.1, 10.0):
        lessons = [lesson(result, name="one", weight=weight), lesson(other, name="other")]
        outcome = finish(lessons, Weights({"w": torch.zeros(4, 3)}), WEIGHTS)
        losses.append(float(lesson(result).loss(outcome.learnt, range(80))))
    assert losses[1] < 0.5 * losses[0]


def test_lessons_that_take_turns_are_all_learnt():
    teacher = normal(4, 3)
    names = ("one", "two", "three", "four")
    lessons = [lesson(teacher, name=name, seed=place) for place, name in enumerate(names)]
    settings = Finish(moves="weights", steps=60, rates=(0.1,), lessons=1, batch_size=16)
    outcome = finish(lessons, Weights({"w": torch.zeros(4, 3)}), settings)
    for result in lessons:
        assert float(result.loss(outcome.learnt, range(80))) < 0.2 * float(
            result.loss({"w": torch.zeros(4, 3)}, range(80))
        )


@pytest.mark.parametrize("after", [5, 35, 75, 130])
def test_a_killed_finish_goes_on_and_ends_in_the_same_bytes(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(states, "EVERY", 0.0)
    movable, lessons = Weights({"w": torch.zeros(4, 3)}), [lesson(normal(4, 3))]
    whole = finish(lessons, movable, WEIGHTS)
    with pytest.raises(KilledError):
        finish(lessons, movable, WEIGHTS, folder=tmp_path, progress=killing(after))
    assert len(list(tmp_path.iterdir())) == 1
    first: list[int] = []
    again = finish(
        lessons,
        movable,
        WEIGHTS,
        folder=tmp_path,
        progress=lambda what, done, total: first.append(done),
    )
    assert torch.equal(whole.learnt["w"], again.learnt["w"])
    assert whole.curve == again.curve
    assert len(first) < 40 + 40 + 60 + 6 - after + 3  # what was done is not done again
    assert list(tmp_path.iterdir()) == []


def test_the_state_of_another_finish_is_not_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(states, "EVERY", 0.0)
    movable, lessons = Weights({"w": torch.zeros(4, 3)}), [lesson(normal(4, 3))]
    with pytest.raises(KilledError):
        finish(lessons, movable, WEIGHTS, folder=tmp_path, key="these models", progress=killing(20))
    other = [lesson(normal(4, 3, seed=9))]
    alone = finish(other, movable, WEIGHTS, key="others")
    beside = finish(other, movable, WEIGHTS, folder=tmp_path, key="others")
    assert torch.equal(alone.learnt["w"], beside.learnt["w"])


def test_a_rate_that_breaks_the_student_is_left_behind():
    settings = Finish(moves="weights", steps=40, rates=(0.05, 1e30), batch_size=16)
    outcome = finish([lesson(normal(4, 3))], Weights({"w": torch.zeros(4, 3)}), settings)
    assert outcome.rate == 0.05


def test_a_teacher_that_says_nothing_finite_is_an_error():
    with pytest.raises(NumericalError, match="nothing finite"):
        finish([lesson(torch.full((4, 3), float("nan")))], Weights({"w": torch.zeros(4, 3)}), WEIGHTS)
