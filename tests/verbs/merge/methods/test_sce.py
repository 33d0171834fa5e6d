"""Select, calculate, erase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_sce_selects_calculates_and_erases(
    operands: Make, trio: Any, share: float, merged: Any, close: Any, top: Any
):
    base, models = trio
    updates = np.stack([model - base for model in models])
    variance = updates.var(axis=0)
    selected = updates * top(variance, int(share * base.size))
    weights = (selected**2).mean(axis=(1, 2))
    weights = weights / weights.sum()
    agree = np.sign(selected) == np.where(selected.sum(axis=0) >= 0, 1, -1)
    shaped = weights[:, None, None] * agree
    expected = base + (selected * shaped).sum(axis=0) / np.maximum(shaped.sum(axis=0), 1e-6)
    close(merged("sce", operands(models, base), select_topk=share), expected)
