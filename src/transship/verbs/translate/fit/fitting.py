"""Fit: which method, how good, and what to do with it. Every figure is of rows that the map never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship.errors import NumericalError
from transship.progress import Progress, quiet
from transship.types import Array
from transship.verbs.translate.fit.advice import advise
from transship.verbs.translate.fit.judgements import Judgements
from transship.verbs.translate.fit.needs import FitPlan, plan_candidates
from transship.verbs.translate.fit.pairs import Pairing, VectorPairs
from transship.verbs.translate.fit.quality import (
    MapQuality,
    map_thresholds,
    measure,
    old_alone,
    out_of_sample,
    restore_variance,
)
from transship.verbs.translate.fit.trials import (
    Direction,
    FitSettings,
    MapTrial,
    PreparedPairs,
    choose,
    prepare_pairs,
    try_map,
)
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.nearest import neighbours, overlap

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# numbers of pairs on the page's curve
CURVE = (100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class QuerySide:
    """A query map (new → old) with and without the target's mean: recall against the old and new model."""

    with_mean: tuple[float, float]
    without_mean: tuple[float, float]

    @property
    def keep_mean(self) -> bool:
        """Whether the mean helps to imitate the new model on the old index."""
        return self.with_mean[1] >= self.without_mean[1]


@dataclass(frozen=True)
class MapFit:
    """What came out of fitting: the map, why this one, and every figure to see before using it.

    Attributes:
        chosen: the trial that won; its map was fitted without the pairs `held`.
        translator: the map, fitted on all pairs.
        why: the reason for the choice.
        trials: every map that was tried.
        left_out: maps that were not, each as one sentence.
        old_alone: recall of the untouched old index.
        pairing: which pairs look wrong.
        thresholds: score of the old space, score of the new one that is as selective.
        advice: what to do with the map.
        direction: of the map.
        pairs: their number.
        held: those that were set aside.
        suspects: ids of pairs that do not seem to belong together, with the rank of their partner.
        query_side: of a map for queries.
        ndcg_native: with judgements, of rows of the new model.
        ndcg_old: with judgements, of rows of the old model.
        curve: method, number of pairs, recall.
    """

    chosen: MapTrial
    translator: Translator
    why: str
    trials: Sequence[MapTrial]
    left_out: Sequence[str]
    old_alone: float
    pairing: Pairing
    thresholds: Sequence[tuple[float, float]]
    advice: Sequence[str]
    direction: Direction
    pairs: int
    held: VectorPairs
    suspects: Sequence[tuple[str, int]] = ()
    query_side: QuerySide | None = None
    ndcg_native: float | None = None
    ndcg_old: float | None = None
    curve: Sequence[tuple[str, int, float]] = ()

    def quality(self) -> dict[str, Any]:
        """Return what the map's file carries."""
        return {
            "forecast": self.chosen.forecast.to_dict(),
            "held_out": self.chosen.held_out.to_dict(),
            "old_alone": self.old_alone,
            "pairs": self.pairs,
            "wrong_pairs": self.pairing.share,
            "kind": "document to document",
        }


def fit_pairs(
    pairs: VectorPairs,
    settings: FitSettings | None = None,
    *,
    plan: FitPlan | None = None,
    judgements: Judgements | None = None,
    progress: Progress = quiet,
) -> MapFit:
    """Fit the candidates, forecast them, choose one and refit it on all pairs.

    Wrong pairing is refused, and below the gate (forecast recall@k) no map is returned, unless forced.
    """
    settings = settings or FitSettings()
    plan = plan or plan_candidates(settings.method)
    prepared = prepare_pairs(pairs, settings)
    kinds, left_out = plan.within(len(pairs))
    trials = []
    for number, kind in enumerate(kinds):
        progress("fit maps", number, len(kinds) + 1)
        trials.append(try_map(kind, prepared, settings, judgements))
    chosen, why = choose(trials)
    _check_gate(chosen, settings)
    progress("fit maps", len(kinds), len(kinds) + 1)
    fit = _describe(chosen, why, trials, left_out, prepared, settings, judgements)
    progress("fit maps", len(kinds) + 1, len(kinds) + 1)
    return fit


def _check_gate(chosen: MapTrial, settings: FitSettings) -> None:
    if chosen.forecast.recall < settings.gate and not settings.force:
        raise NumericalError(
            f"the best map ({chosen.name}) is forecast to find {chosen.forecast.recall:.0%} of the top "
            f"{settings.k}, below the gate of {settings.gate:.0%}",
            where="quality",
            fix="give more pairs, re-embed, or pass --force to write it all the same",
        )


def _describe(
    chosen: MapTrial,
    why: str,
    trials: Sequence[MapTrial],
    left_out: Sequence[str],
    prepared: PreparedPairs,
    settings: FitSettings,
    judgements: Judgements | None,
) -> MapFit:
    """Refit the chosen map on all pairs, and gather what its user should know."""
    pairs, train, k, seed = prepared.pairs, prepared.train, settings.k, settings.seed
    native = old_ndcg = None
    if judgements is not None:
        native = judgements.ndcg(train.ids, train.new, None, k)
        old_ndcg = judgements.ndcg(train.ids, None, train.old, k)
    old = old_alone(train.old, train.new, k=k, seed=seed)
    mapped = map_thresholds(pairs.old, pairs.new, np.asarray(THRESHOLDS), seed=seed)
    pairing, as_query = prepared.pairing, settings.direction == "query"
    return MapFit(
        chosen=chosen,
        translator=_refit(chosen, pairs.sides(settings.direction), pairs.ids, seed),
        why=why,
        trials=trials,
        left_out=left_out,
        old_alone=old,
        pairing=pairing,
        thresholds=[(before, float(after)) for before, after in zip(THRESHOLDS, mapped, strict=True)],
        advice=advise(chosen, old, len(pairs), settings, old_ndcg),
        direction=settings.direction,
        pairs=len(pairs),
        held=prepared.held,
        suspects=[(str(train.ids[row]), int(pairing.ranks[row])) for row in pairing.wrong],
        query_side=_query_side(chosen.translator, prepared, k) if as_query else None,
        ndcg_native=native,
        ndcg_old=old_ndcg,
        curve=_curve(trials, prepared, settings) if settings.curve else (),
    )


def _refit(chosen: MapTrial, sides: tuple[Array, Array], ids: Sequence[Any], seed: int) -> Translator:
    translator = chosen.translator.settled().fit(*sides, ids=ids)
    if not chosen.restored:
        return translator
    return restore_variance(translator, out_of_sample(translator, *sides, seed=seed), sides[1])


def check_pairs(
    translator: Translator, pairs: VectorPairs, *, direction: Direction = "index", k: int = 10, seed: int = 0
) -> tuple[MapQuality, float]:
    """Measure a map on other pairs: its quality, and what the untouched old index gives there."""
    source, target = pairs.sides(direction)
    return measure(translator.transform(source), target, k=k, seed=seed), old_alone(
        pairs.old, pairs.new, k=k, seed=seed
    )


def _query_side(translator: Translator, prepared: PreparedPairs, k: int) -> QuerySide:
    """Measure translated queries on the untouched old rows, with and without the target's mean."""
    train, held = prepared.train, prepared.held
    old_best, new_best = neighbours(held.old, train.old, k), neighbours(held.new, train.new, k)

    def both(queries: Array) -> tuple[float, float]:
        ranked = neighbours(queries, train.old, k)
        return overlap(ranked, old_best), overlap(ranked, new_best)

    return QuerySide(both(translator.transform(held.new)), both(translator.direction(held.new)))


def _curve(
    trials: Sequence[MapTrial], prepared: PreparedPairs, settings: FitSettings
) -> list[tuple[str, int, float]]:
    """Return recall by method and by number of anchors, for the page: among the rows held out, at any number.

    With as many as there are, the map is the candidate itself.
    """
    train = prepared.train
    rows, natives = prepared.held.sides(settings.direction)
    points = []
    for trial in trials:
        for size in (*(size for size in CURVE if size < len(train)), len(train)):
            fitted = trial.translator
            if size < len(train):
                fitted = fitted.settled().fit(*train.take(np.arange(size)).sides(settings.direction))
            quality = measure(fitted.transform(rows), natives, k=settings.k, seed=settings.seed)
            points.append((trial.name, size, quality.recall))
    return points
