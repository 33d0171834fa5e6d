"""RAM: unique changes whole, shared ones averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_unique_changes_are_added_whole_and_shared_ones_averaged(
    operands: Make, trio: Any, merged: Any, close: Any
):
    base, models = trio
    updates = np.stack([np.where(np.abs(model - base) > 0.1, model - base, 0) for model in models])
    count = (updates != 0).sum(axis=0)
    expected = base + updates.sum(axis=0) / np.maximum(count, 1)
    close(merged("ram", operands(models, base), epsilon=0.1), expected)
