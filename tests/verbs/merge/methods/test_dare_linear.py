"""DARE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths import operands as operands_module
from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_dare_drops_at_random_and_restores_the_norm_or_the_mean(
    operands: Make, gaussian: Any, merged: Any, close: Any
):
    base, model = gaussian(200, 100, seed=0), gaussian(200, 100, seed=1)
    given = operands([model], base, weight=1.0, density=0.3)
    plain = merged("dare-linear", given, rescale=False) - base
    kept = np.abs(plain) > 1e-6
    assert kept.mean() == pytest.approx(0.3, abs=0.02)
    close(plain[kept], (model - base)[kept])
    by_norm = merged("dare-linear", given) - base
    assert np.abs(by_norm).sum() == pytest.approx(np.abs(model - base).sum(), rel=1e-4)
    np.testing.assert_allclose(
        merged("dare-linear", given, rescale_by="density") - base, plain / 0.3, atol=1e-5
    )
    close(merged("dare-linear", operands([model], base, weight=1.0, density=1.0)), model)


def test_dare_keeps_the_expectation(operands: Make, merged: Any):
    """With 1/density the mean over many draws is the update itself: the claim of the paper's Theorem."""
    base, model = np.zeros(2000, np.float32), np.ones(2000, np.float32)
    draws = [
        merged(
            "dare-linear", operands([model], base, weight=1.0, density=0.4, seed=seed), rescale_by="density"
        )
        for seed in range(50)
    ]
    assert np.mean(draws) == pytest.approx(1.0, abs=0.02)


def test_random_draws_depend_on_seed_tensor_and_model_and_on_nothing_else(
    operands: Make, monkeypatch: Any, merged: Any
):
    base, models = np.zeros((30, 40), np.float32), [np.ones((30, 40), np.float32)] * 2
    first = merged("dare-linear", operands(models, base, weight=[1.0, 0.0], density=0.5))
    np.testing.assert_array_equal(
        first, merged("dare-linear", operands(models, base, weight=[1.0, 0.0], density=0.5))
    )
    for changed in (
        operands(models, base, weight=[1.0, 0.0], density=0.5, seed=1),
        operands(models, base, weight=[1.0, 0.0], density=0.5, name="other"),
        operands(models, base, weight=[0.0, 1.0], density=0.5),
    ):
        assert not np.array_equal(first, merged("dare-linear", changed))
    monkeypatch.setattr(operands_module, "CHUNK", 100)
    np.testing.assert_array_equal(
        first, merged("dare-linear", operands(models, base, weight=[1.0, 0.0], density=0.5))
    )
