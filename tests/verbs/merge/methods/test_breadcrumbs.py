"""Model Breadcrumbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


@pytest.mark.parametrize(("density", "gamma"), [(0.5, 0.1), (0.95, 0.2), (1.0, 0.1)])
def test_outliers_and_small_entries_are_dropped(
    operands: Make, trio: Any, merged: Any, close: Any, top: Any, density: float, gamma: float
):
    base, models = trio
    count = int(density * base.size)
    dropped = min(int(gamma * base.size), base.size - count)
    masks = [top(m - base, dropped + count) & ~top(m - base, dropped) for m in models]
    updates = np.stack([(m - base) * mask * np.float32(0.5) for m, mask in zip(models, masks, strict=True)])
    total = updates.sum(axis=0)
    close(
        merged("breadcrumbs", operands(models, base, weight=0.5, density=density, gamma=gamma)), base + total
    )


def test_rescaling_restores_the_sum_of_magnitudes(operands: Make, trio: Any, merged: Any):
    base, (model, *_) = trio
    given = operands([model], base, weight=1.0, density=0.4, gamma=0.1)
    pruned = merged("breadcrumbs", given, rescale=True) - base
    assert np.abs(pruned).sum() == pytest.approx(np.abs(model - base).sum(), rel=1e-4)
