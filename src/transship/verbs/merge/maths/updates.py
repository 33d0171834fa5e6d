"""Sums of updates: which entries survive (by magnitude, by chance, or by both), and whose sign wins.

A sparsifier is called with the parts of one update from first to last and changes them in place; a part that
starts at 0 starts it anew, so that an update can be worked off twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from transship.errors import OptionError
from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.maths.selection import count_equal, kth_in_tensor, magnitudes

Sparsifier = Callable[[Floats, slice], None]


def keep_all(update: Floats, part: slice) -> None:
    """Change nothing."""


def keep_none(update: Floats, part: slice) -> None:
    """Set every entry to zero."""
    update.fill(0.0)


class Largest:
    """Keeps the entries above a threshold, and the first `places` of those that equal it.

    Attributes:
        threshold: a magnitude.
        places: how many of the equal ones are kept: those with the lower index.
        ties: how many there are.
    """

    def __init__(self, threshold: float, places: int, ties: int) -> None:
        self.threshold, self.places, self.ties = np.float32(threshold), places, ties
        self._left = places

    def mask(self, magnitude: Floats, part: slice) -> npt.NDArray[np.bool_]:
        """Return which entries of the next part are kept."""
        if self.places >= self.ties:
            return magnitude >= self.threshold
        if part.start == 0:
            self._left = self.places
        kept: npt.NDArray[np.bool_] = magnitude > self.threshold
        if self._left:
            equal = np.flatnonzero(magnitude == self.threshold)[: self._left]
            kept[equal] = True
            self._left -= equal.size
        return kept

    def __call__(self, update: Floats, part: slice) -> None:
        """Zero the entries that are not kept."""
        np.multiply(update, self.mask(np.abs(update), part), out=update)


class Between:
    """Keeps what is among the `outer` but not among the `inner` largest."""

    def __init__(self, outer: Largest, inner: Largest) -> None:
        self._outer, self._inner = outer, inner

    def __call__(self, update: Floats, part: slice) -> None:
        """Zero the entries outside the band."""
        magnitude = np.abs(update)
        kept = self._outer.mask(magnitude, part) & ~self._inner.mask(magnitude, part)
        np.multiply(update, kept, out=update)


def largest(values: Floats, counts: list[int]) -> list[Largest]:
    """Return the sparsifier for each of `counts`; reorders `values`."""
    size = values.size
    ranks = [size - min(count, size) for count in counts]
    inside = [rank for rank in ranks if rank < size]
    if inside:
        values.partition(inside)
    sparsifiers = []
    for rank in ranks:
        if rank == size:
            sparsifiers.append(Largest(np.inf, 0, 1))
            continue
        threshold = values[rank]
        # with several ranks the places right of this one are still all at least the threshold
        places = count_equal(values[rank:], threshold)
        sparsifiers.append(Largest(threshold, places, places + count_equal(values[:rank], threshold)))
    return sparsifiers


def by_magnitude(operands: Operands, index: int, density: float) -> Sparsifier:
    """Keep the max(1, ⌊density·n⌋) largest entries of the tensor."""
    if density >= 1:
        return keep_all
    if density <= 0 or operands.size == 0:
        return keep_none
    count = max(1, int(density * operands.size))
    threshold, ties, places = kth_in_tensor(operands, index, count)
    return Largest(threshold, places, ties)


def without_outliers(operands: Operands, index: int, density: float, gamma: float) -> Sparsifier:
    """Drop the ⌊gamma·n⌋ largest entries, then keep the next ⌊density·n⌋.

    When both do not fit, fewer outliers are dropped, so that the density holds.
    """
    if density >= 1:
        return keep_all
    size = operands.size
    count = int(density * size)
    dropped = min(int(gamma * size), size - count)
    if count <= 0 or size == 0:
        return keep_none
    outer, inner = largest(magnitudes(operands, index), [dropped + count, dropped])
    return Between(outer, inner)


class Bernoulli:
    """Keeps each entry with probability `density`."""

    def __init__(self, operands: Operands, index: int, density: float) -> None:
        self._operands, self._index, self._density = operands, index, np.float32(density)
        self._random = operands.random(index)

    def __call__(self, update: Floats, part: slice) -> None:
        """Zero the entries that chance drops."""
        if part.start == 0:
            self._random = self._operands.random(self._index)
        kept = self._random.random(update.size, dtype=np.float32) < self._density
        np.multiply(update, kept, out=update)


class RankBernoulli:
    """Keeps entries by chance, large ones more often. A part holds whole rows.

    The probability is density − ε + 2 ε r, with r ∈ [0, 1] the rank of the magnitude within its row.

    Attributes:
        inverse: divide what is kept by its probability.
    """

    def __init__(self, operands: Operands, index: int, density: float, epsilon: float, inverse: bool) -> None:
        self._operands, self._index, self._row = operands, index, operands.row
        self._low, self._span, self.inverse = np.float32(density - epsilon), np.float32(2 * epsilon), inverse
        self._random = operands.random(index)

    def chances(self, update: Floats) -> Floats:
        """Return the probability with which each entry is kept."""
        magnitude = np.abs(update).reshape(-1, self._row)
        if self._row < 2:  # a row of one entry has no rank: its probability is the density
            return np.full(update.size, self._low + self._span / 2, np.float32)
        order = np.argsort(magnitude, axis=1, kind="stable")
        steps = np.arange(self._row, dtype=np.float32) / np.float32(self._row - 1)
        ranks = np.empty(order.shape, np.float32)
        np.put_along_axis(ranks, order, np.broadcast_to(steps, order.shape), axis=1)
        return (ranks * self._span + self._low).reshape(-1)

    def __call__(self, update: Floats, part: slice) -> None:
        """Zero the entries that chance drops."""
        if part.start == 0:
            self._random = self._operands.random(self._index)
        chance = self.chances(update)
        kept = self._random.random(update.size, dtype=np.float32) < chance
        np.multiply(update, kept, out=update)
        if self.inverse:
            update /= chance


class Rescaled:
    """Multiplies what another sparsifier keeps."""

    def __init__(self, sparsify: Sparsifier, factor: float) -> None:
        self._sparsify, self._factor = sparsify, np.float32(factor)

    def __call__(self, update: Floats, part: slice) -> None:
        self._sparsify(update, part)
        update *= self._factor


def matching_norm(operands: Operands, index: int, sparsify: Sparsifier, *, rows: bool = False) -> Sparsifier:
    """Return `sparsify` with its result enlarged so that ‖d‖₁ is as before pruning; unchanged near zero."""
    if sparsify is keep_all or sparsify is keep_none:
        return sparsify
    before = after = 0.0
    for part in operands.row_parts() if rows else operands.parts():
        update = operands.update(index, part)
        before += float(np.sum(np.abs(update), dtype=np.float64))
        sparsify(update, part)
        after += float(np.sum(np.abs(update), dtype=np.float64))
    small = 1e-7
    return Rescaled(sparsify, before / after) if before >= small and after >= small else sparsify


def by_chance(operands: Operands, index: int, density: float) -> Sparsifier:
    """Keep each entry with probability `density`."""
    if density >= 1:
        return keep_all
    return Bernoulli(operands, index, density) if density > 0 else keep_none


def by_rank_and_chance(
    operands: Operands, index: int, density: float, epsilon: float, *, inverse: bool
) -> Sparsifier:
    """Keep entries by chance, large ones of each row more often."""
    if density >= 1:
        return keep_all
    if density <= 0:
        return keep_none
    if density + epsilon >= 1 or density - epsilon <= 0:
        raise OptionError(
            f"density {density} ± epsilon {epsilon} leaves the open interval from 0 to 1",
            where=operands.name,
            fix="choose a smaller epsilon",
        )
    return RankBernoulli(operands, index, density, epsilon, inverse)


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
