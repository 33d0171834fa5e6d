"""The weighted mean, or sum, of the models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.errors import OptionError
from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_linear_is_the_weighted_mean(operands: Make, trio: Any, merged: Any, close: Any):
    _, models = trio
    given = operands(models, weight=[1.0, 2.0, 5.0])
    close(merged("linear", given), (models[0] + 2 * models[1] + 5 * models[2]) / 8)
    close(merged("linear", given, normalize=False), models[0] + 2 * models[1] + 5 * models[2])


def test_linear_with_one_model_is_that_model(operands: Make, trio: Any, merged: Any):
    _, models = trio
    for weight in (1.0, 0.3, -7.1, 1e-30):
        result = merged("linear", operands(models[:1], weight=weight), normalize=True)
        assert result.tobytes() == models[0].tobytes()
    given = operands(models[:1], weight=0.3)
    np.testing.assert_array_equal(merged("linear", given, normalize=False), models[0] * np.float32(0.3))


def test_linear_refuses_weights_that_sum_to_nothing(operands: Make, trio: Any, merged: Any):
    with pytest.raises(OptionError, match="sum to 0"):
        merged("linear", operands(trio[1], weight=[1.0, -1.0, 0.0]))
