"""Model Stock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]
SHAPE = (7, 12)


@pytest.mark.parametrize("rows", [False, True])
def test_model_stock_moves_by_the_angle_between_the_updates(
    operands: Make, trio: Any, rows: bool, merged: Any, close: Any
):
    base, models = trio
    updates = [(model - base) if rows else (model - base).reshape(1, -1) for model in models]
    cosines = [
        np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        for a, b in itertools.combinations(updates, 2)
    ]
    cosine = np.mean(cosines, axis=0)
    share = (3 * cosine / (1 + 2 * cosine))[:, None]
    expected = share * np.mean(models, axis=0).reshape(updates[0].shape) + (1 - share) * base.reshape(
        updates[0].shape
    )
    close(merged("model-stock", operands(models, base), filter_wise=rows), expected.reshape(SHAPE))


def test_model_stock_of_equal_models_is_that_model(operands: Make, trio: Any, merged: Any, close: Any):
    base, (first, *_) = trio
    close(merged("model-stock", operands([first, first], base)), first)
