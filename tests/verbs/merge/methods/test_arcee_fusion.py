"""Arcee Fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_arcee_fusion_takes_over_what_stands_out(operands: Make, trio: Any, merged: Any, close: Any):
    base, (model, *_) = trio

    def softmax(rows: np.ndarray) -> np.ndarray:
        powers = np.exp(rows.astype(np.float64))
        return powers / powers.sum(axis=-1, keepdims=True) + 1e-8

    tuned, origin = softmax(model), softmax(base)
    importance = np.abs(model - base) * np.sum(tuned * np.log(tuned / origin), axis=-1, keepdims=True)
    low, middle, high = (np.sort(importance.ravel())[int(s * (base.size - 1))] for s in (0.25, 0.5, 0.75))
    expected = np.where(importance >= middle + 1.5 * (high - low), model, base)
    close(merged("arcee-fusion", operands([model], base)), expected)
    assert 0 < (expected != base).mean() < 0.5
