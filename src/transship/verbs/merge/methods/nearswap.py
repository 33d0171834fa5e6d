"""NearSwap: take over entries of one model that are near the base's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class NearSwap(RecipeMethod):
    """Take over the entries of a model where it is near the base, and less of them the farther it is.

    w = min(1, t / max(|b − x|, 1e-6)); the result is w x + (1 − w) b.

    Attributes:
        t: the distance up to which an entry is taken over whole.
    """

    paper: ClassVar[str] = "alchemonaut, 2024"
    elementwise: ClassVar[bool] = True
    required: ClassVar[tuple[str, ...]] = ("t",)
    most: ClassVar[int | None] = 1

    t: float = 1e-4

    def merge(self, operands: Operands) -> Iterator[Floats]:
        for part in operands.parts():
            origin, values = operands.origin(part), operands.model(0, part)
            distance = np.maximum(np.abs(origin - values), np.float32(1e-6))
            share = np.clip(np.float32(self.t) / distance, np.float32(0.0), np.float32(1.0))
            yield share * values + (np.float32(1.0) - share) * origin
