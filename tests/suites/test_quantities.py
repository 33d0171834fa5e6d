from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship_suites.runner.quantities import Measurement, MetricMean, cell, highest, lowest

SEEDS = (0, 1, 2)


def grid(seed: int = 0) -> tuple[list[Measurement], np.ndarray]:
    """Return measurements over method × task × seed, and the same numbers as an array."""
    values = np.random.default_rng(seed).normal(size=(2, 4, 3))
    measured = [
        Measurement({"method": method, "task": task}, {"accuracy": float(values[m, task, s])}, s)
        for m, method in enumerate(("a", "b"))
        for task in range(4)
        for s in SEEDS
    ]
    return measured, values


def test_a_cell_averages_what_it_leaves_open_within_each_seed():
    measured, values = grid()
    per_seed = cell("accuracy", method="a").per_seed(measured, SEEDS)
    np.testing.assert_allclose(per_seed, values[0].mean(0), rtol=1e-14)


def test_several_levels_may_be_selected():
    measured, values = grid()
    per_seed = cell("accuracy", method="b", task=(1, 3)).per_seed(measured, SEEDS)
    np.testing.assert_allclose(per_seed, values[1, [1, 3]].mean(0), rtol=1e-14)


@given(seed=st.integers(0, 1000), factor=st.floats(-3, 3))
def test_arithmetic_is_done_seed_by_seed(seed: int, factor: float):
    measured, values = grid(seed)
    a, b = cell("accuracy", method="a"), cell("accuracy", method="b")
    x, y = values[0].mean(0), values[1].mean(0)
    np.testing.assert_allclose((a - factor * b + 1).per_seed(measured, SEEDS), x - factor * y + 1, atol=1e-12)
    np.testing.assert_allclose((a * b / 2).per_seed(measured, SEEDS), x * y / 2, atol=1e-12)
    np.testing.assert_allclose((1 - a).per_seed(measured, SEEDS), 1 - x, atol=1e-12)
    np.testing.assert_allclose(highest(a, b).per_seed(measured, SEEDS), np.maximum(x, y), atol=1e-12)
    np.testing.assert_allclose(lowest(a, b).per_seed(measured, SEEDS), np.minimum(x, y), atol=1e-12)


def test_a_seed_without_a_number_has_no_value():
    measured, values = grid()
    measured.append(Measurement({"method": "a", "task": 9}, {"accuracy": None}, 1))
    per_seed = cell("accuracy", method="a").per_seed(measured, SEEDS)
    assert per_seed[1] is None
    assert per_seed[0] == pytest.approx(values[0].mean(0)[0])


def test_what_was_never_measured_and_a_division_by_zero_have_no_value():
    measured, _ = grid()
    assert cell("accuracy", method="c").per_seed(measured, SEEDS) == [None] * 3
    assert cell("loss").per_seed(measured, SEEDS) == [None] * 3
    a = cell("accuracy", method="a")
    assert (a / (a - a)).per_seed(measured, SEEDS) == [None] * 3


def test_a_row_fills_in_only_what_a_cell_leaves_open():
    gain = cell("accuracy") - cell("accuracy", method="zero")
    measured = [
        Measurement({"method": name}, {"accuracy": value}, 0)
        for name, value in (("zero", 0.2), ("ours", 0.7))
    ]
    assert gain.within({"method": "ours"}).per_seed(measured, [0]) == [pytest.approx(0.5)]
    assert MetricMean("accuracy", {"method": "zero"}).within({"method": "ours"}) == MetricMean(
        "accuracy", {"method": "zero"}
    )


def test_a_quantity_reads_as_a_formula():
    text = str(cell("accuracy", method="a") - 2 * highest(cell("x"), cell("y", task=("p", "q"))))
    assert text == "(accuracy (method a) − (highest of(x, y (task p or q)) × 2))"
