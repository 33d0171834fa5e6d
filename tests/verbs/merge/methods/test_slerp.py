"""Spherical interpolation between the base and one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]
SHAPE = (7, 12)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_slerp_is_the_formula_on_the_flattened_tensors(
    operands: Make, t: float, gaussian: Any, merged: Any, close: Any
):
    base, model = gaussian(*SHAPE, seed=0), gaussian(*SHAPE, seed=1)
    angle = np.arccos(np.sum(base * model) / np.linalg.norm(base) / np.linalg.norm(model))
    expected = (np.sin((1 - t) * angle) * base + np.sin(t * angle) * model) / np.sin(angle)
    close(merged("slerp", operands([model], base), t=t), expected)


@given(seed=st.integers(0, 1000), t=st.floats(0, 1))
def test_slerp_of_unit_vectors_stays_on_the_sphere(seed: int, t: float, gaussian: Any, merged: Any):
    rows = gaussian(2, 30, seed=seed)
    base, model = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    make = Operands("x", (30,), [lambda a, b: model[a:b]], lambda a, b: base[a:b])
    assert np.linalg.norm(merged("slerp", make, t=t)) == pytest.approx(1.0, abs=1e-5)


def test_slerp_of_tensors_in_line_is_the_straight_line(operands: Make, trio: Any, merged: Any, close: Any):
    base, _ = trio
    close(merged("slerp", operands([2 * base], base), t=0.25), 1.25 * base)
    close(merged("slerp", operands([np.zeros_like(base)], base), t=0.25), base * np.sin(0.75 * np.pi / 2))
