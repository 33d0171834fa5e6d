"""Arcee Fusion: take over the changes that matter most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.spans import Doubles
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class ArceeFusion(RecipeMethod):
    """Take over the entries of an update whose importance stands out.

    Importance is |x − b| times the divergence KL(softmax(x) ‖ softmax(b)) of its row; entries at or above
    the median plus 1.5 times the interquartile range are taken over. Quantiles are taken over all entries,
    not over a sample.
    """

    paper: ClassVar[str] = "Arcee AI, 2024"
    most: ClassVar[int | None] = 1
    whole: ClassVar[int] = 1

    def merge(self, operands: Operands) -> Iterator[Floats]:
        width = (operands.shape or (1,))[-1]
        importance = np.empty(operands.size, np.float32)
        for part in operands.row_parts(width):
            importance[part] = _importance(operands.model(0, part), operands.origin(part), width)
        threshold = _threshold(importance)
        for part in operands.row_parts(width):
            origin, values = operands.origin(part), operands.model(0, part)
            important = _importance(values, origin, width) >= threshold
            yield origin + (values - origin) * important


def _softmax(rows: Floats) -> Doubles:
    powers: Doubles = np.exp(rows - rows.max(axis=1, keepdims=True), dtype=np.float64)
    powers /= powers.sum(axis=1, keepdims=True)
    return powers + 1e-8


def _importance(values: Floats, origin: Floats, width: int) -> Floats:
    """Return |x − b| times the divergence of its row, in float64: rows that are nearly equal cancel."""
    tuned, base = _softmax(values.reshape(-1, width)), _softmax(origin.reshape(-1, width))
    divergence = np.sum(tuned * np.log(tuned / base), axis=1, keepdims=True)
    importance: Floats = (np.abs(values - origin).reshape(-1, width) * divergence).astype(np.float32)
    return importance.reshape(-1)


def _threshold(importance: Floats) -> np.float32:
    """Return median + 1.5 (third − first quartile), each the lower of two; reorders `importance`."""
    ranks = [int(share * (importance.size - 1)) for share in (0.25, 0.5, 0.75)]
    importance.partition(sorted(set(ranks)))
    low, middle, high = importance[ranks]
    return np.float32(middle + np.float32(1.5) * (high - low))
