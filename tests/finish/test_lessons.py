"""What a lesson loses, and which of its rows serve what."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from transship.finish.lessons import (
    LEAST,
    Lesson,
    batch_of,
    divergence,
    divergence_of_likely,
    most_likely,
    neighbours,
    squared_error,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def lesson(count: int) -> Lesson:
    return Lesson("task", count, lambda weights, rows: (torch.zeros(1), torch.zeros(1)), divergence)


def test_divergence_equals_its_sum():
    student, teacher = normal(5, 4), normal(5, 4, seed=1)
    p = softmax(teacher.numpy(), axis=1)
    expected = (p * (log_softmax(teacher.numpy(), 1) - log_softmax(student.numpy(), 1))).sum(1).mean()
    assert float(divergence(student, teacher)) == pytest.approx(expected, rel=1e-10)
    assert float(divergence(teacher, teacher)) == pytest.approx(0.0, abs=1e-12)


def test_squared_errors_count_in_units_of_the_teachers_variance():
    student, teacher = normal(6, 3), normal(6, 3, seed=1)
    expected = float((student - teacher).square().mean()) / 2.5
    assert float(squared_error(2.5)(student, teacher)) == pytest.approx(expected, rel=1e-12)


def test_neighbours_ask_for_the_same_angles_whatever_the_axes():
    features = normal(7, 4)
    turn = torch.linalg.qr(normal(6, 4, seed=2))[0]  # [6, 4]: orthonormal columns
    assert float(neighbours(features, features @ turn.T)) == pytest.approx(0.0, abs=1e-12)
    assert float(neighbours(features, 3.0 * features)) == pytest.approx(0.0, abs=1e-12)
    assert float(neighbours(normal(7, 4, seed=3), features)) > 0.1


def test_a_single_row_has_no_neighbours():
    assert float(neighbours(normal(1, 4), normal(1, 3))) == 0.0


def test_what_is_likely_gives_the_whole_divergence_where_nothing_is_left_over():
    student, teacher = normal(5, 6), normal(5, 6, seed=1)
    kept = most_likely(teacher, 6)
    assert kept.shape == (5, 12)
    whole = float(divergence(student, teacher))
    assert float(divergence_of_likely(student, kept.double())) == pytest.approx(whole, abs=1e-4)
    # words that are counted as one can only hide a difference
    few = float(divergence_of_likely(student, most_likely(teacher, 2).double()))
    assert 0.0 < few < whole


@given(st.integers(1, 300), st.floats(0.05, 0.5), st.integers(0, 5))
def test_rows_are_learnt_from_or_judged_by_and_never_both_unless_they_are_few(
    count: int, share: float, seed: int
):
    learnt, judged = lesson(count).parts(share, seed)
    assert {*learnt, *judged} == set(range(count))
    assert judged
    assert (count < LEAST) == bool({*learnt} & {*judged})


@given(st.integers(1, 40), st.integers(1, 16), st.integers(0, 3))
def test_a_pass_shows_every_row_at_most_once_and_all_but_a_rest(count: int, size: int, seed: int):
    rows = list(range(100, 100 + count))
    steps = max(1, count // min(size, count))
    batches = [batch_of(rows, size, step, seed, "task") for step in range(steps)]
    shown = [row for batch in batches for row in batch]
    assert len(set(shown)) == len(shown) == steps * min(size, count)
    assert batches == [batch_of(rows, size, step, seed, "task") for step in range(steps)]
