"""DELLA with election."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.errors import OptionError
from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_what_agrees_with_the_elected_sign_is_summed(
    operands: Make, trio: Any, merged: Any, elected: Any, over: Any, close: Any
):
    """Each model's draw is that of `della-linear`, which adds without election."""
    base, models = trio
    weights, more = [0.7, -0.4, 0.2], {"density": 0.5, "epsilon": 0.2}
    parts = []
    for place, weight in enumerate(weights):
        alone = [weight if other == place else 0.0 for other in range(3)]
        parts.append(
            merged("della-linear", operands(models, base, weight=alone, **more), rescale=False) - base
        )
    total, divisor = elected(np.stack(parts), np.array(weights))
    given = operands(models, base, weight=weights, **more)
    close(merged("della", given, rescale=False), base + over(total, divisor))


def test_della_refuses_probabilities_outside_the_unit_interval(operands: Make, merged: Any):
    with pytest.raises(OptionError, match="smaller epsilon"):
        merged("della", operands([np.ones((2, 3))], np.zeros((2, 3)), weight=1.0, density=0.9, epsilon=0.15))
