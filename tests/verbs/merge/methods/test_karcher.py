"""The Karcher mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_karcher_is_the_point_of_least_squared_angle(operands: Make, trio: Any, gaussian: Any, merged: Any):
    _, models = trio
    array = merged("karcher", operands(models), max_iter=100, tol=1e-9).ravel().astype(np.float64)
    flat = np.stack([model.ravel() for model in models]).astype(np.float64)
    units = flat / np.linalg.norm(flat, axis=1)[:, None]
    assert np.linalg.norm(array) == pytest.approx(np.linalg.norm(flat, axis=1).mean(), rel=1e-6)

    def cost(point: np.ndarray) -> float:
        return float(np.sum(np.arccos(np.clip(units @ point / np.linalg.norm(point), -1, 1)) ** 2))

    for seed in range(20):
        assert cost(array) <= cost(array + 1e-3 * gaussian(array.size, seed=seed)) + 1e-12


def test_karcher_of_one_model_is_that_model(operands: Make, trio: Any, merged: Any):
    np.testing.assert_array_equal(merged("karcher", operands(trio[1][:1])), trio[1][0])
