"""DARE with election."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]


def test_what_agrees_with_the_elected_sign_is_summed(
    operands: Make, trio: Any, merged: Any, elected: Any, close: Any
):
    """Each model's draw is that of `dare-linear`, which adds without election."""
    base, models = trio
    weights, more = [0.7, -0.4, 0.2], {"density": 0.5}
    parts = []
    for place, weight in enumerate(weights):
        alone = [weight if other == place else 0.0 for other in range(3)]
        parts.append(
            merged("dare-linear", operands(models, base, weight=alone, **more), rescale=False) - base
        )
    total, _ = elected(np.stack(parts), np.array(weights))
    given = operands(models, base, weight=weights, **more)
    close(merged("dare-ties", given, rescale=False), base + total)
