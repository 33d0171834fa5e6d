"""TIES, by recipe and one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transship.errors import OptionError
from transship.registry import build_method
from transship.verbs.merge.maths import operands as operands_module
from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.methods.ties import agree, trim

Make = Callable[..., Operands]


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.7, -0.4, 0.2]])
@pytest.mark.parametrize("normalize", [True, False])
def test_ties_is_trim_elect_and_merge(
    operands: Make,
    trio: Any,
    weights: list[float],
    normalize: bool,
    merged: Any,
    close: Any,
    top: Any,
    elected: Any,
    over: Any,
):
    base, models = trio
    count = int(0.4 * base.size)
    updates = np.stack(
        [(m - base) * top(m - base, count) * np.float32(w) for m, w in zip(models, weights, strict=True)]
    )
    total, divisor = elected(updates, np.array(weights))
    expected = base + (over(total, divisor) if normalize else total)
    given = operands(models, base, weight=weights, density=0.4)
    close(merged("ties", given, normalize=normalize), expected)


@given(seed=st.integers(0, 10_000), density=st.floats(0.05, 0.95), chunk=st.sampled_from([5, 16, 1 << 17]))
def test_ties_keeps_no_trimmed_entry_and_none_that_opposes_the_elected_sign(
    seed: int, density: float, chunk: int, merged: Any, top: Any, elected: Any, over: Any
):
    # few distinct magnitudes, so that many entries tie at the threshold
    updates = np.random.default_rng(seed).integers(-3, 4, (3, 60)).astype(np.float32)
    kept = np.stack([update * top(update, max(1, int(density * 60))) for update in updates])
    total, divisor = elected(kept, np.ones(3))
    given = Operands(
        "x",
        (60,),
        [lambda a, b, update=update: update[a:b] for update in updates],
        lambda a, b: np.zeros(b - a, np.float32),
        {"weight": [1.0] * 3, "density": [density] * 3},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands_module, "CHUNK", chunk)
        result = merged("ties", given)
    np.testing.assert_allclose(result, over(total, divisor), rtol=1e-6)
    assert (result[(kept == 0).all(axis=0)] == 0).all()
    assert (np.sign(result) * np.sign(kept.sum(axis=0)) >= 0).all()


def test_global_ties_trims_over_the_whole_model(operands: Make, gaussian: Any):
    base = [np.zeros((4, 9), np.float32), np.zeros(50, np.float32)]
    tuned = [gaussian(4, 9, seed=1), 3 * gaussian(50, seed=2)]
    tensors = [operands([t], b, weight=1.0, density=0.3) for t, b in zip(tuned, base, strict=True)]
    method = build_method("merge", "ties", {"trim": "global"})
    assert method.wants_survey
    thresholds = method.survey(lambda: iter(tensors))
    everything = np.concatenate([tensor.ravel() for tensor in tuned])
    expected = np.sort(np.abs(everything))[::-1][int(0.3 * everything.size) - 1]
    assert thresholds == [pytest.approx(float(expected), abs=0)]
    for tensor, values in zip(tensors, tuned, strict=True):
        surveyed = dataclasses.replace(tensor, survey=thresholds)
        array = np.concatenate(list(method.merge(surveyed))).reshape(values.shape)
        np.testing.assert_array_equal(array, values * (np.abs(values) >= expected))


def test_global_ties_needs_one_density(operands: Make):
    tensors = [operands([np.ones(4)], np.zeros(4), weight=1.0, density=density) for density in (0.5, 0.6)]
    with pytest.raises(OptionError, match="density differs"):
        build_method("merge", "ties", {"trim": "global"}).survey(lambda: iter(tensors))


def ties_reference(old: np.ndarray, new: np.ndarray, density: float, scale: float) -> np.ndarray:
    rows = np.stack([old, new])
    for row in rows:
        row[np.argsort(-np.abs(row), kind="stable")[int(density * row.size) :]] = 0
    signs = np.sign(rows.sum(0))
    signs[signs == 0] = np.sign(signs.sum())
    return old + scale * np.where(np.sign(rows) == signs, rows, 0).sum(0)


def test_ties_equals_its_reference_and_feeds_itself(arrivals: Any):
    expected = 0.5 * arrivals.flat(arrivals.update(1))
    for seed in (2, 3):
        expected = ties_reference(expected, arrivals.flat(arrivals.update(seed)), 0.2, 0.5)
    np.testing.assert_allclose(arrivals.flat(arrivals.run("ties", [1, 2, 3])[0]), expected, atol=1e-6)


def test_ties_keeps_exactly_its_share_and_no_entry_against_the_elected_sign():
    row = torch.tensor([3.0, -1.0, 1.0, 1.0, 0.5, -2.0, 1.0, 0.0, 0.0, 0.1])
    trim(row, 0.4)
    assert row.tolist() == [3.0, -1.0, 1.0, 0.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0]  # of equal ones the first
    rows = torch.randn(2, 500)
    for result in rows:
        trim(result, 0.3)
        assert int((result != 0).sum()) == 150
    joined = agree(rows)
    elected = rows.sum(0).sign()
    assert bool((joined * elected >= 0).all())
    assert bool((joined[(rows == 0).all(0)] == 0).all())
