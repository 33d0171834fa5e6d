"""Model Stock: move from the base towards the mean, as far as the models agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.spans import Doubles, combine, gram
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class ModelStock(RecipeMethod):
    """Interpolate between the base and the mean of the models by the angle between their updates.

    Jang et al., "Model Stock: All we need is just a few fine-tuned models", Eq. (2): t = N c / (1 + (N−1) c)
    with c the mean cosine between updates; the result is t · mean(x) + (1−t) · b.

    Attributes:
        filter_wise: one angle for each row instead of one for the tensor.
    """

    of_updates: ClassVar[bool] = True
    paper: ClassVar[str] = "Jang et al., 2024"
    least: ClassVar[int] = 2

    filter_wise: bool = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        count = len(operands.models)
        if not self.filter_wise:
            share = float(_share(gram(operands)[None], count)[0])
            return combine(operands, [share / count] * count)
        return self._by_row(operands)

    def _by_row(self, operands: Operands) -> Iterator[Floats]:
        width, count = (operands.shape or (1,))[-1], len(operands.models)
        for part in operands.row_parts(width):
            origin = operands.origin(part)
            stack = np.stack([update.reshape(-1, width) for update in operands.updates(part, origin)])
            products = np.einsum("irw,jrw->rij", stack, stack, dtype=np.float64)
            shares = _share(products, count).astype(np.float32)
            yield origin + (stack.mean(axis=0) * shares[:, None]).reshape(-1)


def _share(products: Doubles, count: int) -> Doubles:
    """Return t for each Gram matrix [rows, count, count]; 0 where the formula has a pole."""
    norms = np.sqrt(np.einsum("rii->ri", products))
    lengths = np.maximum(norms[:, :, None] * norms[:, None, :], 1e-6)
    cosines = np.clip(products / lengths, -1.0, 1.0)
    pairs = np.triu_indices(count, k=1)
    cosine = cosines[:, pairs[0], pairs[1]].mean(axis=1)
    divisor = 1 + (count - 1) * cosine
    pole = np.abs(divisor) < 1e-6
    return np.where(pole, 0.0, count * cosine / np.where(pole, 1.0, divisor))
