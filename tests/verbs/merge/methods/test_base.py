"""Nothing merged."""

from __future__ import annotations

from typing import Any

import numpy as np

from transship.verbs.merge.maths.states import norm


def test_the_base_stays_the_base(arrivals: Any):
    assert norm(arrivals.run("base", [1, 2])[0]) == 0.0


def test_a_model_taken_out_was_never_there(arrivals: Any):
    _, (method, state) = arrivals.run("base", [1, 2, 3])
    left = method.merged(method.remove(state, arrivals.step(3, 2)), arrivals.base)
    np.testing.assert_allclose(arrivals.flat(left), arrivals.flat(arrivals.run("base", [1, 3])[0]), atol=1e-6)
