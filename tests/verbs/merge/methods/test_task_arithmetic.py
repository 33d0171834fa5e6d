"""Task arithmetic, by recipe and one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_task_arithmetic_adds_weighted_updates(operands: Make, trio: Any, merged: Any, close: Any):
    base, models = trio
    expected = base + 0.9 * sum(w * (m - base) for w, m in zip((0.5, -0.2, 0.1), models, strict=True))
    close(
        merged("task-arithmetic", operands(models, base, weight=[0.5, -0.2, 0.1], density=1.0), scale=0.9),
        expected,
    )


def test_task_arithmetic_sums_at_one_scale(arrivals: Any):
    merged, _ = arrivals.run("task-arithmetic", [1, 2, 3], scale=0.4)
    np.testing.assert_allclose(
        arrivals.flat(merged),
        0.4 * sum(arrivals.flat(arrivals.update(seed)) for seed in (1, 2, 3)),
        atol=1e-6,
    )


def test_a_model_taken_out_was_never_there(arrivals: Any):
    _, (method, state) = arrivals.run("task-arithmetic", [1, 2, 3])
    left = method.merged(method.remove(state, arrivals.step(3, 2)), arrivals.base)
    np.testing.assert_allclose(
        arrivals.flat(left), arrivals.flat(arrivals.run("task-arithmetic", [1, 3])[0]), atol=1e-6
    )
