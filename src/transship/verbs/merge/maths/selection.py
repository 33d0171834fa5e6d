"""The k-th largest magnitude of a tensor or of a whole model, without sorting either.

A sample brackets the threshold; one pass then counts what lies above the bracket and looks closely only at
the few entries inside. The result is exact whatever the sample was: a bracket that missed is moved and tried
again. Non-negative floats order as their bit patterns do, so that a histogram over patterns is exact too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from transship.numerics import chunks
from transship.verbs.merge.maths.operands import CHUNK, Floats, Operands, Survey

Bits = npt.NDArray[np.uint32]
BINS = 1 << 18
SAMPLE = 1 << 19
BLOCK = 1 << 10
SMALL = 1 << 16  # elements; a smaller tensor is partitioned as it is
HIGHEST = 0x7F800000  # the pattern of infinity


def kth_in_tensor(operands: Operands, index: int, count: int) -> tuple[float, int, int]:
    """Return the `count`-th largest |x_index − b| of one tensor, how many entries equal it, and how many of
    those belong to the `count` largest.
    """
    if operands.size > SMALL:
        low, high = bracket(
            _sample(lambda: iter((operands,)), index, max(8192, operands.size // 256)), count / operands.size
        )
        above, inside = 0, []
        for part in operands.parts():
            update = operands.update(index, part)
            bits = np.abs(update, out=update).view(np.uint32)
            above += int(np.count_nonzero(bits > np.uint32(high)))
            # unsigned: what lies below `low` wraps round to far above the width
            inside.append(np.compress((bits - np.uint32(low)) <= np.uint32(high - low), update))
        near = np.concatenate(inside)
        if above < count <= above + near.size:
            return _kth(near, count - above)
    return _kth(magnitudes(operands, index), count)


def magnitudes(operands: Operands, index: int) -> Floats:
    """Return |x_index − b| of the whole tensor."""
    sizes = np.empty(operands.size, np.float32)
    for part in operands.parts():
        np.abs(operands.update(index, part), out=sizes[part])
    return sizes


def _kth(values: Floats, count: int) -> tuple[float, int, int]:
    """Return the `count`-th largest value, how many equal it, and how many of those are needed; reorders."""
    rank = values.size - count
    values.partition(rank)
    threshold = values[rank]
    needed = count_equal(values[rank:], threshold)
    return float(threshold), needed + count_equal(values[:rank], threshold), needed


def count_equal(values: Floats, value: np.float32) -> int:
    """Return how many entries equal `value`; by parts, as one mask would be a quarter of a copy more."""
    return sum(int(np.count_nonzero(values[part] == value)) for part in chunks(values.size, CHUNK))


def kth_in_model(tensors: Survey, index: int, density: float) -> float:
    """Return the max(1, ⌊density·n⌋)-th largest |x_index − b| over all tensors."""
    total = sum(operands.size for operands in tensors())
    if density >= 1 or total == 0:
        return 0.0
    if density <= 0:
        return float("inf")

    def patterns() -> Iterator[Bits]:
        for operands in tensors():
            for part in operands.parts():
                update = operands.update(index, part)
                yield np.abs(update, out=update).view(np.uint32)

    wanted = max(1, int(density * total))
    return _value(select(patterns, wanted, *bracket(_sample(tensors, index, SAMPLE), density)))


def select(patterns: Callable[[], Iterator[Bits]], wanted: int, low: int = 0, high: int = HIGHEST) -> int:
    """Return the `wanted`-th largest pattern; low and high are a guess that need not hold."""
    while True:
        shift = max(0, (high - low + 1).bit_length() - BINS.bit_length() + 1)
        above, histogram = _count(patterns, low, high, shift)
        inside = int(histogram.sum())
        if above >= wanted:
            low, high = high + 1, HIGHEST
        elif above + inside < wanted:
            low, high = 0, low - 1
        else:
            from_top = above + np.cumsum(histogram[::-1])
            place = BINS - 1 - int(np.searchsorted(from_top, wanted))
            if shift == 0:
                return low + place
            low, high = low + (place << shift), min(high, low + ((place + 1) << shift) - 1)


def bracket(sample: Floats, density: float) -> tuple[int, int]:
    """Return patterns that most likely enclose the threshold: the sample's quantile ± six deviations."""
    ordered = np.sort(sample)
    centre = (1 - density) * ordered.size
    margin = 6 * np.sqrt(density * (1 - density) * ordered.size) + 8
    low = ordered[int(np.clip(centre - margin, 0, ordered.size - 1))]
    high = ordered[int(np.clip(centre + margin, 0, ordered.size - 1))]
    return _pattern(low), _pattern(high)


def _count(
    patterns: Callable[[], Iterator[Bits]], low: int, high: int, shift: int
) -> tuple[int, npt.NDArray[np.int64]]:
    """Return how many patterns exceed `high`, and a histogram of those in [low, high], 2**shift to a bin."""
    above, histogram = 0, np.zeros(BINS, np.int64)
    pending: list[Bits] = []
    held = 0
    for bits in patterns():
        above += int(np.count_nonzero(bits > np.uint32(high)))
        shifted = bits - np.uint32(low)
        inside = np.compress(shifted <= np.uint32(high - low), shifted)
        pending.append(inside)
        held += inside.size
        if held > BINS:
            histogram += np.bincount(np.concatenate(pending) >> np.uint32(shift), minlength=BINS)
            pending, held = [], 0
    if held:
        histogram += np.bincount(np.concatenate(pending) >> np.uint32(shift), minlength=BINS)
    return above, histogram


def _sample(tensors: Survey, index: int, wanted: int) -> Floats:
    """Return about `wanted` magnitudes, in evenly spaced short blocks of all tensors."""
    total = sum(operands.size for operands in tensors())
    stride = max(BLOCK, total * BLOCK // wanted)
    blocks, place = [], 0  # place: where the next block starts, counted from the start of this tensor
    for operands in tensors():
        while place < operands.size:
            part = slice(place, min(place + BLOCK, operands.size))
            blocks.append(np.abs(operands.update(index, part)))
            place += stride
        place -= operands.size
    return np.concatenate(blocks)


def _pattern(value: np.float32) -> int:
    return int(np.array([value], np.float32).view(np.uint32)[0])


def _value(pattern: int) -> float:
    return float(np.array([pattern], np.uint32).view(np.float32)[0])
