"""Model Breadcrumbs with election."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


@pytest.mark.parametrize(("density", "gamma"), [(0.5, 0.1), (0.95, 0.2), (1.0, 0.1)])
def test_outliers_and_small_entries_are_dropped_and_the_sign_is_elected(
    operands: Make, trio: Any, merged: Any, close: Any, top: Any, elected: Any, density: float, gamma: float
):
    base, models = trio
    count = int(density * base.size)
    dropped = min(int(gamma * base.size), base.size - count)
    masks = [top(m - base, dropped + count) & ~top(m - base, dropped) for m in models]
    updates = np.stack([(m - base) * mask * np.float32(0.5) for m, mask in zip(models, masks, strict=True)])
    total = elected(updates, np.full(3, 0.5))[0]
    close(
        merged("breadcrumbs-ties", operands(models, base, weight=0.5, density=density, gamma=gamma)),
        base + total,
    )
