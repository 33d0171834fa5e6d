"""What fitting and measuring maps take in memory, from above, before any row is read.

The factors are measured: peak anonymous memory of fits on 2,000 to 8,000 pairs, 384 and 768 wide.
"""

from __future__ import annotations

import math

from transship.numerics import MemoryBudget
from transship.verbs.translate.fit.fitting import KERNEL_MOST
from transship.verbs.translate.fit.pairs import BATCH, FEWEST, reading_bytes
from transship.verbs.translate.fit.quality import MOST_QUERIES
from transship.verbs.translate.nearest import SCORES
from transship.verbs.translate.stores import Source

POOL = 20_000  # rows that the ways farthest and kmeans look at
# float64 matrices [pairs, pairs] that a kernel map holds at its worst
_KERNEL_SQUARES = 9
# float32 numbers that a pair is kept as, per unit of both widths: in float64, centred, predicted, held out
_PAIR_COPIES = 14
# float64 matrices [width, width] of a linear map: Grams, eigenvectors, solutions
_WIDTH_SQUARES = 12
# cosines of all pairs among MOST_QUERIES rows, in both spaces, sorted
_THRESHOLDS = 40 * MOST_QUERIES * MOST_QUERIES


def _linear_bytes(old: Source, new: Source, pairs: int) -> int:
    width = old.width + new.width
    squares = 8 * _WIDTH_SQUARES * max(old.width, new.width) ** 2
    return 4 * _PAIR_COPIES * pairs * width + squares + min(SCORES, 16 * 512 * pairs) + _THRESHOLDS


def fitting_room(memory: MemoryBudget, old: Source, new: Source, most: int | None, method: str) -> int:
    """Return the most pairs that a kernel map may have beside the rest; refuse what fits in no way."""
    assert memory.limit is not None
    pairs = min(old.rows, new.rows, most or old.rows)
    linear = reading_bytes(old, new) + _linear_bytes(old, new, pairs)
    instead = f"pass --pairs with fewer than {pairs:,}" if pairs > FEWEST else ""
    kernel = 8 * _KERNEL_SQUARES * pairs * pairs if method == "kernel" else 0
    memory.require(linear + kernel, f"fitting {method} on {pairs:,} pairs", instead)
    room = memory.limit - memory.base - linear
    return min(KERNEL_MOST, math.isqrt(max(0, room) // (8 * _KERNEL_SQUARES)))


def choosing_bytes(old: Source, new: Source | None, count: int, way: str) -> int:
    """Return what choosing anchors takes: a batch of the store, the rows looked at, and the pairs to measure.

    Looking at a row keeps its vector, centred and as a direction, in float32 and once in float64; its id and
    text stand for 600 bytes. k-means holds the centres and the products of a batch of 4,096 with them.
    """
    batch = BATCH * (3 * 4 * old.width + 1200)
    looked_at = count if way == "random" else max(count, POOL)
    rows = min(old.rows, looked_at)
    copies = 0 if way == "random" else 4 * 6 * rows * old.width
    if new is not None:
        copies += reading_bytes(old, new) + _linear_bytes(old, new, min(old.rows, new.rows))
    centred = way == "kmeans" or new is not None
    return batch + 600 * rows + copies + (8 * count * (3 * old.width + 2 * 4096) if centred else 0)


def checking_bytes(old: Source, new: Source, most: int | None) -> int:
    """Return what measuring a map takes: the pairs, translated and scaled, and the scores of some queries."""
    pairs = min(old.rows, new.rows, most or old.rows)
    copies = 4 * 5 * pairs * (old.width + new.width)
    return reading_bytes(old, new) + copies + min(SCORES, 16 * 512 * pairs)
