"""Copies, scaled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_passthrough_copies_or_scales(operands: Make, trio: Any, merged: Any, close: Any):
    _, (model, *_) = trio
    np.testing.assert_array_equal(merged("passthrough", operands([model], scale=[None])), model)
    close(merged("passthrough", operands([model], scale=[0.5])), model / 2)
