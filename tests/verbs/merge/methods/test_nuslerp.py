"""Spherical interpolation between two models, whole or along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


@pytest.mark.parametrize(("flatten", "rows"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("with_base", [False, True])
def test_nuslerp_is_slerp_along_an_axis(
    operands: Make, trio: Any, flatten: bool, rows: bool, with_base: bool, merged: Any
):
    base, (result, other, _) = trio
    origin = base if with_base else np.zeros_like(base)
    axis = None if flatten else 0 if rows else 1
    first, second = result - origin, other - origin
    dot, a, b = (
        np.sum(x * y, axis=axis, keepdims=True)
        for x, y in ((first, second), (first, first), (second, second))
    )
    angle = np.arccos(dot / np.sqrt(a * b))
    expected = origin + (np.sin(0.75 * angle) * first + np.sin(0.25 * angle) * second) / np.sin(angle)
    given = operands([result, other], base if with_base else None, weight=[3.0, 1.0])
    np.testing.assert_allclose(
        merged("nuslerp", given, nuslerp_flatten=flatten, nuslerp_row_wise=rows), expected, atol=1e-4
    )
