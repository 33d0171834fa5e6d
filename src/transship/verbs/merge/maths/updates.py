"""Sums of updates, with and without election of signs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from transship.verbs.merge.maths.sparsify import Sparsifier
from transship.verbs.merge.protocol import Floats, Operands


def elected_sum(parts: Sequence[Floats], weights: Sequence[float]) -> tuple[Floats, Floats]:
    """Return the sum of the entries that agree with the elected sign, and the sum of their weights.

    s = sign(Σ_i p_i), with + for 0; an entry p_i ≠ 0 is kept where sign(p_i) = s. Changes `parts`.
    """
    elected = total(parts)
    mixed, divisor = np.zeros_like(elected), np.zeros_like(elected)
    kept = np.empty_like(elected)
    sign, scratch = elected.view(np.int32), kept.view(np.int32)
    for part, weight in zip(parts, weights, strict=True):
        # the sign bits differ exactly where the exclusive or is negative: no product that could underflow
        np.bitwise_xor(part.view(np.int32), sign, out=scratch)
        agree = scratch >= 0
        agree &= part != 0
        kept[:] = agree  # a float mask: multiplying by booleans would convert them twice
        part *= kept
        mixed += part
        kept *= np.float32(weight)
        divisor += kept
    return mixed, divisor


def total(parts: Sequence[Floats]) -> Floats:
    """Return the sum, first to last."""
    summed = np.array(parts[0])
    for part in parts[1:]:
        summed += part
    return summed


def contributions(
    operands: Operands, part: slice, origin: Floats, epsilon: float
) -> tuple[list[Floats], list[npt.NDArray[np.bool_]], npt.NDArray[np.int64]]:
    """Return the updates, where each exceeds `epsilon`, and how many do at each entry."""
    updates = operands.updates(part, origin)
    changed = [np.abs(update) > np.float32(epsilon) for update in updates]
    return updates, changed, np.sum(changed, axis=0, dtype=np.int64)


def merge_updates(
    operands: Operands,
    sparsifiers: Sequence[Sparsifier],
    *,
    elect: bool,
    normalize: bool,
    scale: float,
    rows: bool = False,
) -> Iterator[Floats]:
    """Yield b + scale · Σ_i w_i d̂_i / divisor, d̂_i being the sparsified update of model i.

    The divisor is 1, or with `normalize` the weights of what was summed: those that agree with the elected
    sign at an entry (`elect`), otherwise all. Where nothing was summed it is 1.
    """
    weights = [
        float(operands.round(np.array([weight], np.float32))[0]) for weight in operands.number("weight")
    ]
    whole = float(operands.round(np.array([sum(weights)], np.float32))[0])
    for part in operands.row_parts() if rows else operands.parts():
        origin = operands.origin(part)
        updates = []
        for index, (sparsify, weight) in enumerate(zip(sparsifiers, weights, strict=True)):
            update = operands.update(index, part, origin)
            sparsify(update, part)
            operands.round(update)
            update *= np.float32(weight)
            updates.append(operands.round(update))
        if elect:
            mixed, divisor = elected_sum(updates, weights)
            operands.round(divisor)
        else:
            mixed, divisor = total(updates), np.full(1, whole if abs(whole) >= 1e-8 else 1.0, np.float32)
        operands.round(mixed)
        if normalize:
            divisor += divisor == 0  # nothing was summed there
            mixed /= divisor
            operands.round(mixed)
        if scale != 1.0:
            mixed *= np.float32(scale)
            operands.round(mixed)
        mixed += origin
        yield operands.round(mixed)
