"""What fitting and measuring maps take in memory, from above, before any row is read.

The factors are measured: peak anonymous memory of fits on 2,000 to 8,000 pairs, 384 and 768 wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from transship.numerics import MemoryBudget
from transship.verbs.translate.fit.pairs import BATCH, FEWEST, reading_bytes
from transship.verbs.translate.fit.quality import MOST_QUERIES
from transship.verbs.translate.fit.trials import FitSettings, candidates
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.nearest import SCORES
from transship.verbs.translate.stores import VectorSource

POOL = 20_000  # rows that the ways farthest and kmeans look at
# float32 numbers that a pair is kept as, per unit of both widths: in float64, centred, predicted, held out
_PAIR_COPIES = 14
# float64 matrices [width, width] of a linear map: Grams, eigenvectors, solutions
_WIDTH_SQUARES = 12
# cosines of all pairs among MOST_QUERIES rows, in both spaces, sorted
_THRESHOLDS = 40 * MOST_QUERIES * MOST_QUERIES


@dataclass(frozen=True)
class FitPlan:
    """What a fit will try, known before a row is read.

    Attributes:
        kinds: the maps, simplest first.
        free: bytes beside what every fit takes; None: no limit.
        asked: whether the map was asked for by name, so that it is tried whatever it takes.
    """

    kinds: tuple[type[Translator], ...]
    free: int | None = None
    asked: bool = False

    def within(self, pairs: int) -> tuple[list[type[Translator]], list[str]]:
        """Return the maps that so many pairs allow, and a sentence for each that they do not."""
        kinds, left_out = [], []
        for kind in self.kinds:
            most = self._most(kind)
            if self.asked or most is None or pairs <= most:
                kinds.append(kind)
            else:
                count = f"{pairs:,} pairs are more than the {most:,} that fit"
                left_out.append(f"{kind().map_name} is left out: {count}")
        return kinds, left_out

    def _most(self, kind: type[Translator]) -> int | None:
        if self.free is None or not kind.anchor_squares:
            return kind.most_anchors
        most = math.isqrt(max(0, self.free) // (8 * kind.anchor_squares))
        return most if kind.most_anchors is None else min(most, kind.most_anchors)


def plan_candidates(method: str) -> FitPlan:
    """Return what a fit with room for everything tries."""
    return FitPlan(tuple(candidates(method)), asked=method != "auto")


def plan_fit(
    old: VectorSource, new: VectorSource, settings: FitSettings, memory: MemoryBudget | None
) -> FitPlan:
    """Return what a fit within `memory` tries; refuse what fits in no way, before any row is read."""
    plan = plan_candidates(settings.method)
    if memory is None or memory.limit is None:
        return plan
    pairs = min(old.rows, new.rows, settings.pairs or old.rows)
    linear = reading_bytes(old, new) + _linear_bytes(old, new, pairs)
    instead = f"pass --pairs with fewer than {pairs:,}" if pairs > FEWEST else ""
    squares = 8 * plan.kinds[0].anchor_squares * pairs * pairs if plan.asked else 0
    memory.require(linear + squares, f"fitting {settings.method} on {pairs:,} pairs", instead)
    return FitPlan(plan.kinds, memory.limit - memory.base - linear, plan.asked)


def choosing_bytes(old: VectorSource, new: VectorSource | None, count: int, way: str) -> int:
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


def checking_bytes(old: VectorSource, new: VectorSource, most: int | None) -> int:
    """Return what measuring a map takes: the pairs, translated and scaled, and the scores of some queries."""
    pairs = min(old.rows, new.rows, most or old.rows)
    copies = 4 * 5 * pairs * (old.width + new.width)
    return reading_bytes(old, new) + copies + min(SCORES, 16 * 512 * pairs)


def _linear_bytes(old: VectorSource, new: VectorSource, pairs: int) -> int:
    width = old.width + new.width
    squares = 8 * _WIDTH_SQUARES * max(old.width, new.width) ** 2
    return 4 * _PAIR_COPIES * pairs * width + squares + min(SCORES, 16 * 512 * pairs) + _THRESHOLDS
