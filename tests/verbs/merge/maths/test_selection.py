import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.verbs.merge.maths import selection
from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.maths.selection import HIGHEST, kth_in_model, kth_in_tensor, select


def tensor(values: np.ndarray) -> Operands:
    zeros = np.zeros_like(values)
    return Operands("x", values.shape, [lambda a, b: values[a:b]], lambda a, b: zeros[a:b])


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=200),
    st.data(),
)
def test_select_finds_the_kth_largest_pattern_from_any_bracket(numbers: list[int], data: st.DataObject):
    values = np.array(numbers, np.uint32) * 1000
    wanted = data.draw(st.integers(1, len(numbers)))
    low = data.draw(st.integers(0, 50_000))
    high = data.draw(st.integers(low, 60_000))
    assert select(lambda: iter([values]), wanted, low, high) == np.sort(values)[::-1][wanted - 1]
    assert select(lambda: iter([values]), wanted, 0, HIGHEST) == np.sort(values)[::-1][wanted - 1]


@pytest.mark.parametrize("density", [0.01, 0.3, 0.5, 0.999])
@pytest.mark.parametrize("digits", [1, 2, None])
def test_the_threshold_of_a_tensor_is_exact_with_many_ties_or_none(density: float, digits: int | None):
    values = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    values = values if digits is None else np.round(values, digits).astype(np.float32)
    count = int(density * values.size)
    threshold, ties, places = kth_in_tensor(tensor(values), 0, count)
    magnitude = np.abs(values)
    assert threshold == np.sort(magnitude)[::-1][count - 1]
    assert ties == np.count_nonzero(magnitude == threshold)
    assert np.count_nonzero(magnitude > threshold) + places == count


def test_a_sample_that_misses_costs_time_and_not_exactness(monkeypatch: pytest.MonkeyPatch):
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    monkeypatch.setattr(selection, "bracket", lambda sample, density: (5, 9))
    threshold, _, _ = kth_in_tensor(tensor(values), 0, 700)
    assert threshold == np.sort(np.abs(values))[::-1][699]
    assert kth_in_model(lambda: iter([tensor(values)]), 0, 0.007) == threshold


def test_the_threshold_of_a_model_does_not_depend_on_how_it_is_cut_into_tensors():
    values = np.random.default_rng(0).standard_normal(30_000).astype(np.float32)
    parts = [tensor(part) for part in np.split(values, [10, 5_000, 20_001])]
    assert kth_in_model(lambda: iter(parts), 0, 0.2) == kth_in_model(lambda: iter(parts[::-1]), 0, 0.2)
    assert kth_in_model(lambda: iter(parts), 0, 0.2) == np.sort(np.abs(values))[::-1][5_999]
    assert kth_in_model(lambda: iter(parts), 0, 1.0) == 0.0
    assert kth_in_model(lambda: iter(parts), 0, 0.0) == np.inf
