"""RAM: keep what one model changed, average what several changed. Tensor-local RAM+."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.updates import contributions
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class RamPlusTl(RecipeMethod):
    """Add whole what one model alone changed, and average what several changed, strengthening the former.

    "Reinforced Agent Merging" (arXiv 2601.13572); RAM+ multiplies the entries that only model i changed by
    1 + r · min(ρ_i, alpha), with ρ_i its shared over its unique entries, here counted in each tensor.

    Attributes:
        r: how strongly unique entries are enlarged.
        alpha: the largest ρ that counts.
        epsilon: changes up to this size count as none.
    """

    of_updates: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2601.13572, 2026"

    r: float = 0.1
    alpha: float = 0.2
    epsilon: float = 1e-5

    def merge(self, operands: Operands) -> Iterator[Floats]:
        factors = self._factors(operands)
        for part in operands.parts():
            origin = operands.origin(part)
            updates, changed, count = contributions(operands, part, origin, self.epsilon)
            mixed = np.zeros_like(origin)
            for update, there, factor in zip(updates, changed, factors, strict=True):
                alone = there & (count == 1)
                mixed += np.where(
                    alone, update * np.float32(factor), update * there / np.maximum(count, 1)
                ).astype(np.float32)
            yield origin + mixed

    def _factors(self, operands: Operands) -> list[float]:
        """Return 1 + r · min(ρ_i, alpha) for each model."""
        shared, unique = (np.zeros(len(operands.models), np.int64) for _ in range(2))
        for part in operands.parts():
            _, changed, count = contributions(operands, part, operands.origin(part), self.epsilon)
            for index, there in enumerate(changed):
                shared[index] += np.count_nonzero(there & (count > 1))
                unique[index] += np.count_nonzero(there & (count == 1))
        ratio = shared / np.maximum(unique, self.epsilon)
        return [float(value) for value in 1 + self.r * np.clip(ratio, 0, self.alpha)]
