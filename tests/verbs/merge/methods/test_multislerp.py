"""Barycentric interpolation on the sphere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.errors import OptionError
from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]
SHAPE = (7, 12)


def test_multislerp_is_one_step_in_the_tangent_space(operands: Make, trio: Any, merged: Any, close: Any):
    base, models = trio
    weights = np.array([0.5, 0.3, 0.2])
    flat = np.stack([(model - base).ravel() for model in models])
    norms = np.linalg.norm(flat, axis=1)
    units = flat / norms[:, None]
    mean = weights @ units / np.linalg.norm(weights @ units)
    tangent = weights @ (units - (units @ mean)[:, None] * mean)
    length = np.linalg.norm(tangent)
    expected = base + (
        (mean * np.cos(length) + tangent * np.sin(length) / length) * (weights @ norms)
    ).reshape(SHAPE)
    close(merged("multislerp", operands(models, base, weight=[5.0, 3.0, 2.0])), expected)


def test_multislerp_refuses_directions_that_cancel(operands: Make, trio: Any, merged: Any, close: Any):
    base, (first, *_) = trio
    with pytest.raises(OptionError, match="cancel"):
        merged("multislerp", operands([first, first], weight=[1.0, -1.0]))
    opposite = operands([base + first, base - first], base, weight=[1.0, 1.0])
    close(merged("multislerp", opposite), base)
