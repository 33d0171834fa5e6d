"""RAM+: unique changes strengthened by how much else is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_unique_changes_grow_with_the_share_of_shared_ones(
    operands: Make, trio: Any, merged: Any, close: Any
):
    base, models = trio
    updates = np.stack([np.where(np.abs(model - base) > 0.1, model - base, 0) for model in models])
    count = (updates != 0).sum(axis=0)
    alone, shared = (updates != 0) & (count == 1), (updates != 0) & (count > 1)
    ratio = shared.sum(axis=(1, 2)) / alone.sum(axis=(1, 2))
    factor = 1 + 0.3 * np.minimum(ratio, 0.5)
    expected = base + (updates * np.where(alone, factor[:, None, None], 1 / np.maximum(count, 1))).sum(axis=0)
    close(merged("ramplus-tl", operands(models, base), epsilon=0.1, r=0.3, alpha=0.5), expected)
