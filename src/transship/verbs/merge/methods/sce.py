"""SCE: select by variance, calculate weights, erase minority signs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.updates import Sparsifier, keep_all, keep_none, largest, total
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Sce(RecipeMethod):
    """Keep the entries on which models differ most, weigh models by their squared updates, and drop minority
    signs.

    Wan et al., "FuseChat: Knowledge Fusion of Chat Models", the SCE algorithm. A tensor without any kept
    entry stays the base's.

    Attributes:
        select_topk: the share of entries, of those with any variance over the models, that is kept.
        int8_mask: accepted for recipes that set it; it changes nothing here.
    """

    of_updates: ClassVar[bool] = True
    paper: ClassVar[str] = "Wan et al., 2024"
    whole: ClassVar[int] = 1

    select_topk: float = 1.0
    int8_mask: bool = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        selected = self._selected(operands)
        weights = _weights(operands, selected)
        for part in operands.parts():
            origin = operands.origin(part)
            updates = _updates(operands, part, origin, selected)
            # copysign of the sum elects; sums of magnitudes and of weights run over those that agree
            sign = np.copysign(np.float32(1.0), total(updates))
            mixed, divisor = np.zeros_like(sign), np.zeros_like(sign)
            for update, weight in zip(updates, weights, strict=True):
                agreeing = np.multiply(update * sign > 0, np.float32(weight), dtype=np.float32)
                mixed += update * agreeing
                divisor += agreeing
            mixed /= np.maximum(divisor, np.float32(1e-6))
            mixed += origin
            yield mixed

    def _selected(self, operands: Operands) -> Sparsifier:
        if self.select_topk >= 1:
            return keep_all
        if self.select_topk <= 0:
            return keep_none
        variances = np.empty(operands.size, np.float32)
        for part in operands.parts():
            variances[part] = _variance(operands, part)
        count = int(np.count_nonzero(variances) * self.select_topk)
        if count == 0:
            return keep_none
        kept = largest(variances, [count])[0]

        def select(update: Floats, part: slice) -> None:
            np.multiply(update, kept.mask(_variance(operands, part), part), out=update)

        return select


def _variance(operands: Operands, part: slice) -> Floats:
    """Return the population variance of each entry over the models."""
    origin = operands.origin(part)
    stack = np.stack(operands.updates(part, origin))
    variance: Floats = np.var(stack, axis=0, dtype=np.float32)
    return variance


def _updates(operands: Operands, part: slice, origin: Floats, selected: Sparsifier) -> list[Floats]:
    """Return the selected part of all updates; the mask is the same for every model, so it is made once."""
    updates = operands.updates(part, origin)
    if selected is not keep_all:
        mask = np.ones(part.stop - part.start, np.float32)
        selected(mask, part)
        for update in updates:
            update *= mask
    return updates


def _weights(operands: Operands, selected: Sparsifier) -> list[float]:
    """Return mean(d_i²) over the sum of all of them; equal weights when there is nothing."""
    squares = np.zeros(len(operands.models))
    for part in operands.parts():
        for index, update in enumerate(_updates(operands, part, operands.origin(part), selected)):
            squares[index] += np.dot(update, update)
    means = squares / max(operands.size, 1)
    if means.sum() < 1e-6:
        return [1.0 / len(means)] * len(means)
    return [float(mean) for mean in means / means.sum()]
