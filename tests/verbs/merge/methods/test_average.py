"""The running mean."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])))
def test_average_is_the_mean_in_every_order(order: tuple[int, ...], arrivals: Any):
    merged, _ = arrivals.run("average", list(order))
    expected = np.mean([arrivals.flat(arrivals.update(seed)) for seed in (1, 2, 3)], axis=0)
    np.testing.assert_allclose(arrivals.flat(merged), expected, atol=1e-6)


def test_a_model_taken_out_was_never_there(arrivals: Any):
    _, (method, state) = arrivals.run("average", [1, 2, 3])
    left = method.merged(method.remove(state, arrivals.step(3, 2)), arrivals.base)
    np.testing.assert_allclose(
        arrivals.flat(left), arrivals.flat(arrivals.run("average", [1, 3])[0]), atol=1e-6
    )
