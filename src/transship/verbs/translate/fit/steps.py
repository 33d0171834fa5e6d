"""The three steps of a fit: what it will try, pairs to fit and to measure on, and maps fitted and measured.

What fitting and measuring take in memory is bounded from above, before any row is read. The factors are
measured: peak anonymous memory of fits on 2,000 to 8,000 pairs, 384 and 768 wide.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship.errors import DataError
from transship.numerics import MemoryBudget
from transship.registry import build_method, method_class, method_names
from transship.types import Array
from transship.verbs.translate.fit.judgements import SCORE_BYTES, Judgements
from transship.verbs.translate.fit.pairs import (
    BATCH,
    Pairing,
    VectorPairs,
    find_wrong_pairs,
    reading_bytes,
)
from transship.verbs.translate.fit.quality import (
    MOST_QUERIES,
    MapQuality,
    measure,
    out_of_sample,
    restore_variance,
    stretch,
    variance_axes,
)
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.maps.vectors import SCORES
from transship.verbs.translate.settings import FEWEST, FitSettings
from transship.verbs.translate.stores import VectorSource

POOL = 20_000  # rows that the ways farthest and kmeans look at
# float32 numbers that a pair is kept as, per unit of both widths: in float64, centred, predicted, held out
_PAIR_COPIES = 14
# float64 matrices [width, width] of a linear map: Grams, eigenvectors, solutions
_WIDTH_SQUARES = 12
# scores of judged queries with some rows, of two spaces, fused, sorted
_JUDGING = 10 * SCORE_BYTES
# cosines of all pairs among MOST_QUERIES rows, in both spaces, sorted
_THRESHOLDS = 40 * MOST_QUERIES * MOST_QUERIES
# simpler maps win within this difference of forecast recall
TIE = 0.005
# pairs that look wrong: from this share on, and this number of them, they are refused
WRONG_SHARE, WRONG_LEAST = 0.01, 2
# fewer pairs set aside than this measure nothing
FEWEST_HELD = 20
# with fewer pairs, variance is restored only when asked for
FEWEST_TO_RESTORE = 1000


def candidates(method: str) -> list[type[Translator]]:
    """Return the maps to try: the one that is asked for, or those that stand for `auto`, simplest first."""
    if method != "auto":
        kind: Any = method_class("translate", method)
        if not kind.into_target:
            raise DataError(
                f"'{method}' maps into a shared space, not into the other model's",
                where="--method",
                fix="choose another",
            )
        return [kind]
    kinds: list[Any] = [method_class("translate", name) for name in method_names("translate")]
    return sorted((kind for kind in kinds if kind.place_in_auto), key=lambda kind: kind.place_in_auto)


def reference_map() -> Translator:
    """Return the simplest map that leaves rows out in closed form: it judges pairs and anchors."""
    return next(kind for kind in candidates("auto") if kind.closed_form)()


# -- plan ------------------------------------------------------------------------------------------------


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
    old: VectorSource,
    new: VectorSource,
    settings: FitSettings,
    memory: MemoryBudget | None,
    *,
    judged: bool = False,
) -> FitPlan:
    """Return what a fit within `memory` tries; refuse what fits in no way, before any row is read."""
    plan = plan_candidates(settings.method)
    if memory is None or memory.limit is None:
        return plan
    pairs = min(old.rows, new.rows, settings.pairs or old.rows)
    linear = reading_bytes(old, new) + _linear_bytes(old, new, pairs) + (_JUDGING if judged else 0)
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


# -- prepare ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedPairs:
    """Pairs that belong together, those to fit on and those set aside.

    Attributes:
        pairs: all of them.
        train: to fit and forecast on.
        held: to measure on.
        pairing: which of `train` look wrong.
    """

    pairs: VectorPairs
    train: VectorPairs
    held: VectorPairs
    pairing: Pairing


def prepare_pairs(pairs: VectorPairs, settings: FitSettings) -> PreparedPairs:
    """Set some pairs aside, and refuse those that do not belong together."""
    train, held = pairs.split(settings.held_out, settings.seed)
    if len(held) < FEWEST_HELD:
        raise DataError(
            f"{len(pairs)} pairs leave {len(held)} to hold out",
            where="--held-out",
            fix="give more pairs or a larger share",
        )
    return PreparedPairs(pairs, train, held, check_pairing(train, settings))


def check_pairing(pairs: VectorPairs, settings: FitSettings) -> Pairing:
    """Refuse pairs that do not belong together, by what a linear map predicts of each from the others."""
    source, target = pairs.sides(settings.direction)
    pairing = find_wrong_pairs(out_of_sample(reference_map().fit(source, target), source, target), target)
    if pairing.share > WRONG_SHARE and len(pairing.wrong) >= WRONG_LEAST and not settings.force:
        some = ", ".join(str(pairs.ids[row]) for row in pairing.wrong[:5])
        if pairing.shuffled:
            what = f"{pairing.share:.0%} of the pairs do not belong together: the ids look shuffled"
        else:
            count = f"{len(pairing.wrong)} of {len(pairs)} pairs ({pairing.share:.1%})"
            what = f"{count} do not belong together, such as {some}"
        raise DataError(
            what, where="pairs", fix="check how ids were given, drop these pairs, or pass --force"
        )
    return pairing


# -- try -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MapTrial:
    """One method as it did on these pairs.

    Attributes:
        name: the method.
        translator: fitted on the pairs that were not held out.
        forecast: of rows left out (leave-one-out or folds), among the fitted pairs.
        held_out: of pairs that were set aside.
        seconds: CPU seconds of one fit.
        ndcg: with judgements given, nDCG@k over rows out of sample.
        fused: the same for fused translated and old scores.
        restored: whether variance restoring is part of it.
    """

    name: str
    translator: Translator
    forecast: MapQuality
    held_out: MapQuality
    seconds: float
    ndcg: float | None = None
    fused: float | None = None
    restored: bool = False


def try_map(
    kind: type[Translator], prepared: PreparedPairs, settings: FitSettings, judgements: Judgements | None
) -> MapTrial:
    """Fit one map and measure it."""
    options = settings.options if settings.method != "auto" else {}
    name = kind().map_name
    unfitted: Translator = build_method("translate", name, options)
    unfitted = unfitted.preferred(options, one_way=settings.direction == "index")
    source, target = prepared.train.sides(settings.direction)
    start = time.process_time()
    fitted = unfitted.fit(source, target)
    seconds = time.process_time() - start
    predictions = out_of_sample(fitted, source, target, seed=settings.seed)
    forecast = measure(predictions, target, k=settings.k, seed=settings.seed)
    restored = _worth_restoring(fitted, predictions, target, forecast, settings)
    if restored is not None:
        fitted, predictions, forecast = restored
    held_out = _held_out(fitted, predictions, prepared, settings)
    ndcg = fused = None
    if judgements is not None and settings.direction == "index":
        ndcg, fused = _judged(judgements, prepared.train, fitted, predictions, settings.k)
    return MapTrial(name, fitted, forecast, held_out, seconds, ndcg, fused, restored is not None)


def _held_out(
    fitted: Translator, predictions: Array, prepared: PreparedPairs, settings: FitSettings
) -> MapQuality:
    """Measure queries that were set aside, in a gallery as large as the forecast's: no row of it was seen."""
    source, target = prepared.held.sides(settings.direction)
    natives = prepared.train.sides(settings.direction)[1]
    rest = max(0, len(natives) - len(target))
    gallery = np.vstack([fitted.transform(source), predictions[:rest]])
    return measure(
        gallery,
        np.vstack([target, natives[:rest]]),
        k=settings.k,
        seed=settings.seed,
        queries=np.arange(len(target)),
    )


def _judged(
    judgements: Judgements, train: VectorPairs, fitted: Translator, predictions: Array, k: int
) -> tuple[float | None, float | None]:
    """Return nDCG by translated rows, and by those fused with old ones; the map has seen none of them."""
    if judgements.corpus is None:
        judged = (judgements.ndcg(train.ids, predictions, old, k) for old in (None, train.old))
        return next(judged), next(judged)
    numbers = {str(identity): row for row, identity in enumerate(train.ids)}

    def translate(ids: Sequence[str], rows: Array) -> Array:
        moved: Array = fitted.transform(np.asarray(rows, dtype=np.float32))
        for place, identity in enumerate(ids):
            if identity in numbers:
                moved[place] = predictions[numbers[identity]]
        return moved

    return judgements.search(translate, k), judgements.search(translate, k, by_old=True)


def _worth_restoring(
    fitted: Translator, predictions: Array, target: Array, forecast: MapQuality, settings: FitSettings
) -> tuple[Translator, Array, MapQuality] | None:
    """Return the map with its variance restored when asked for, or when it costs no recall."""
    asked = settings.restore
    if asked is False or not fitted.closed_form or (asked is None and len(target) < FEWEST_TO_RESTORE):
        return None
    # the stretch alone, on predictions out of sample: what it does to rows that the map has not seen
    stretched = stretch(predictions, target, *variance_axes(predictions, target))
    quality = measure(stretched, target, k=settings.k, seed=settings.seed)
    lost = max(forecast.recall - quality.recall, forecast.twin_recall - quality.twin_recall)
    if asked is None and lost > TIE:
        return None
    return restore_variance(fitted, predictions, target), stretched, quality


def choose(trials: Sequence[MapTrial]) -> tuple[MapTrial, str]:
    """Return the trial of best nDCG where judgements are given, else of best forecast recall, and why.

    A simpler one that is level with it is taken in its place.
    """
    judged = [trial.ndcg for trial in trials if trial.ndcg is not None]
    by_ndcg = len(judged) == len(trials)
    scores = judged if by_ndcg else [trial.forecast.recall for trial in trials]
    what, top = "nDCG on your judgements" if by_ndcg else "forecast recall", max(scores)
    best = trials[scores.index(top)]
    number = next(number for number, score in enumerate(scores) if score >= top - TIE)
    if len(trials) == 1:
        return best, f"{best.name} was asked for"
    if trials[number] is not best:
        simple, gap = trials[number], top - scores[number]
        return simple, f"{simple.name} is within {gap:.3f} of {best.name} in {what} and simpler"
    others = max(score for trial, score in zip(trials, scores, strict=True) if trial is not best)
    return best, f"{best.name} has the best {what}, {top:.3f} against {others:.3f}"
