"""NearSwap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_nearswap_takes_over_what_is_near(operands: Make, trio: Any, merged: Any, close: Any):
    base, (model, *_) = trio
    share = np.clip(0.05 / np.maximum(np.abs(base - model), 1e-6), 0, 1)
    result = merged("nearswap", operands([model], base), t=0.05)
    close(result, share * model + (1 - share) * base)
    near = np.abs(base - model) <= 0.05
    close(result[near], model[near])
