"""RAM: keep what one model changed, average what several changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.updates import contributions
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Ram(RecipeMethod):
    """Add whole what one model alone changed, and average what several changed.

    "Reinforced Agent Merging" (arXiv 2601.13572).

    Attributes:
        epsilon: changes up to this size count as none.
    """

    of_updates: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2601.13572, 2026"
    elementwise: ClassVar[bool] = True

    epsilon: float = 1e-5

    def merge(self, operands: Operands) -> Iterator[Floats]:
        for part in operands.parts():
            origin = operands.origin(part)
            updates, changed, count = contributions(operands, part, origin, self.epsilon)
            mixed = np.zeros_like(origin)
            for update, there in zip(updates, changed, strict=True):
                alone = there & (count == 1)
                mixed += np.where(alone, update, update * there / np.maximum(count, 1)).astype(np.float32)
            yield origin + mixed
