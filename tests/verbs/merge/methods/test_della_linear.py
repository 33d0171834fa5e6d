"""DELLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_della_keeps_large_entries_more_often(operands: Make, merged: Any):
    base, model = np.zeros((400, 50), np.float32), np.tile(np.arange(1.0, 51.0, dtype=np.float32), (400, 1))
    given = operands([model], base, weight=1.0, density=0.5, epsilon=0.2)
    kept = (merged("della-linear", given, rescale=False) != 0).mean(axis=0)
    expected = 0.3 + 0.4 * np.arange(50) / 49
    np.testing.assert_allclose(kept, expected, atol=0.12)
    assert np.corrcoef(kept, expected)[0, 1] > 0.9
    unbiased = merged("della-linear", given, rescale_by="density")
    np.testing.assert_allclose(unbiased.mean(axis=0) / model[0], 1.0, atol=0.35)
    assert np.abs(merged("della-linear", given)).sum() == pytest.approx(model.sum(), rel=1e-4)
