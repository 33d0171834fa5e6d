"""Fit maps on part of the pairs, measure each on rows that it never saw, and choose one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from transship.errors import DataError
from transship.registry import build_method, method_class, method_names
from transship.types import Array
from transship.verbs.translate.fit.judgements import Judgements
from transship.verbs.translate.fit.pairs import Pairing, VectorPairs, find_wrong_pairs
from transship.verbs.translate.fit.quality import (
    MapQuality,
    measure,
    out_of_sample,
    restore_variance,
    stretch,
    variance_axes,
)
from transship.verbs.translate.maps.base import Translator

Direction = Literal["index", "query"]
# simpler maps win within this difference of forecast recall
TIE = 0.005
# pairs that look wrong: from this share on, and this number of them, they are refused
WRONG_SHARE, WRONG_LEAST = 0.01, 2
# fewer pairs set aside than this measure nothing
FEWEST_HELD = 20
# with fewer pairs, variance is restored only when asked for
FEWEST_TO_RESTORE = 1000


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """What a fit is to do.

    Attributes:
        method: How to map; auto compares and chooses.
        options: A method's field.
        direction: index: old rows into the new space; query: new queries into the old index.
        pairs: Use at most this many pairs, drawn by seed.
        held_out: Share set aside.
        k: Neighbours that count.
        gate: Least forecast recall; below it no map is written.
        restore: Restore variance; by default where it costs nothing.
        source_model: Name of the old model, kept in the map.
        target_model: Name of the new model, kept in the map.
        texts: Whether the texts are still at hand (for the advice).
        old_encoder: Whether the old model still runs (for the advice).
        curve: Whether recall is also measured by number of pairs, for the page.
        force: Fit also wrong pairs and poor maps, and replace a map that exists.
        seed: Fixes every random choice.
    """

    method: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    direction: Direction = "index"
    pairs: int | None = None
    held_out: float = 0.1
    k: int = 10
    gate: float = 0.25
    restore: bool | None = None
    source_model: str = ""
    target_model: str = ""
    texts: bool | None = None
    old_encoder: bool | None = None
    curve: bool = False
    force: bool = False
    seed: int = 0


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
        ids, old = prepared.train.ids, prepared.train.old
        ndcg = judgements.ndcg(ids, predictions, None, settings.k)
        fused = judgements.ndcg(ids, predictions, old, settings.k)
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
    """Return the trial of best forecast recall, or a simpler one that is level with it, and why."""
    best = max(trials, key=lambda trial: trial.forecast.recall)
    simple = next(trial for trial in trials if trial.forecast.recall >= best.forecast.recall - TIE)
    if len(trials) == 1:
        return best, f"{best.name} was asked for"
    if simple is not best:
        gap = best.forecast.recall - simple.forecast.recall
        return simple, f"{simple.name} is within {gap:.3f} of {best.name} in forecast recall and simpler"
    others = max(trial.forecast.recall for trial in trials if trial is not best)
    return best, f"{best.name} has the best forecast recall, {best.forecast.recall:.3f} against {others:.3f}"
