"""Fit a map on two stores or on pairs, measure it on others, and say what to do with it.

Every figure is of rows that the map never saw.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from transship import __version__
from transship.atomic import check_target
from transship.errors import DataError, NumericalError
from transship.numerics import MemoryBudget
from transship.progress import Progress, quiet
from transship.types import Array
from transship.verbs.translate.engines import Engine
from transship.verbs.translate.fit.judgements import Judgements, read_judgements
from transship.verbs.translate.fit.pairs import VectorPairs, read_pairs
from transship.verbs.translate.fit.quality import (
    MapQuality,
    map_thresholds,
    measure,
    old_alone,
    out_of_sample,
    restore_variance,
)
from transship.verbs.translate.fit.result import FittedMap, MapCheck, MapFit, QuerySide
from transship.verbs.translate.fit.steps import (
    FitPlan,
    MapTrial,
    PreparedPairs,
    checking_bytes,
    choose,
    plan_candidates,
    plan_fit,
    prepare_pairs,
    try_map,
)
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.maps.saved import load_map, save_map
from transship.verbs.translate.maps.vectors import neighbours, overlap
from transship.verbs.translate.settings import FEWEST, Columns, Direction, FitSettings, JudgedFiles
from transship.verbs.translate.stores import VectorSource, open_source, place

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# numbers of pairs on the page's curve
CURVE = (100, 200, 500, 1000, 2000, 5000)
# (texts at hand, old encoder at hand) → what to do
CASES = {
    (True, True): "Texts and old encoder at hand: leave the index, search it with the old encoder, and "
    "re-embed the best 50 to 100 candidates of each query with the new one (LazyIndex with embed). It needs "
    "no map.",
    (True, False): "Old encoder gone, texts at hand: search with a translated query (--direction query) and "
    "re-embed the candidates; the index moves to the new model as it is used.",
    (False, True): "Texts gone, old encoder at hand: translate with variance restored and fuse its scores "
    "with the old ones; put past queries among the pairs.",
    (False, False): "Texts and old encoder gone: translate with the kernel map and variance restored, with "
    "past queries among the pairs; expect the loss stated above.",
}
# from so many pairs on, a map that bends usually beats a linear one
ENOUGH_TO_BEND = 1000


def fit_map(
    old: str,
    new: str,
    folder: str | Path,
    settings: FitSettings | None = None,
    *,
    columns: Columns | None = None,
    judged: JudgedFiles | None = None,
    memory: MemoryBudget | None = None,
    progress: Progress = quiet,
) -> FittedMap:
    """Join OLD and NEW by id, fit, and write the map with its quality into `folder`.

    With judgements, queries search all rows of OLD, and `auto` takes the map of best nDCG.

    With `memory` a map whose memory grows with the square of the pairs is left out where it would not fit,
    and what does not fit without it is refused before any row is read.
    """
    settings = settings or FitSettings()
    reads = {"OLD": place(old).location, "NEW": place(new).location}
    reads |= {} if judged is None else vars(judged)
    check_target(folder, force=settings.force, kind="folder", reads=reads)
    if place(old) == place(new):
        raise DataError("OLD and NEW are one store", where=old, fix="give vectors of two models")
    with _opened(old, columns) as first, _opened(new, columns) as second:
        models = (settings.source_model or first.stamp.model, settings.target_model or second.stamp.model)
        if models[0] and models[0] == models[1]:
            raise DataError(
                f"both sides are of '{models[0]}'", where=f"{old} and {new}", fix="give vectors of two models"
            )
        plan = plan_fit(first, second, settings, memory, judged=judged is not None)
        progress("join the pairs", 0, 1)
        pairs = read_pairs(first, second, most=settings.pairs, seed=settings.seed)
        progress("join the pairs", 1, 1)
        judgements = None
        if judged is not None:
            judgements = read_judgements(judged.table, judged.queries, judged.old_queries, columns, models)
            judgements = replace(judgements, corpus=first)
        fit = fit_pairs(pairs, settings, plan=plan, judgements=judgements, progress=progress)
    about = _about(fit, pairs, models, (old, new), settings)
    return FittedMap(fit, save_map(fit.translator, folder, about, ids=pairs.ids, force=settings.force))


def _about(
    fit: MapFit, pairs: VectorPairs, models: tuple[str, str], names: tuple[str, str], settings: FitSettings
) -> dict[str, Any]:
    """Return what the map's file says of it."""
    target = pairs.sides(fit.direction)[1]
    source_model, target_model = models if fit.direction == "index" else models[::-1]
    count, ids = len(pairs), fit.translator.anchors_hash_
    return {
        "source": source_model,
        "target": target_model,
        "direction": fit.direction,
        "unit_target": bool(np.allclose(np.linalg.norm(target, axis=1), 1.0, atol=1e-3)),
        "keep_mean": fit.query_side.keep_mean if fit.query_side is not None else True,
        "quality": fit.quality(),
        "thresholds": [list(pair) for pair in fit.thresholds],
        "pairs": {"old": names[0], "new": names[1], "count": count, "ids": ids},
        "seed": settings.seed,
        "transship": __version__,
    }


def check_map(
    folder: str | Path,
    old: str,
    new: str,
    *,
    columns: Columns | None = None,
    most: int | None = None,
    k: int = 10,
    seed: int = 0,
    engine: Engine | None = None,
    memory: MemoryBudget | None = None,
) -> MapCheck:
    """Measure a map on other pairs than it was fitted on, by their ids.

    Pairs that it was fitted on are left out; where hardly any other is left, they are measured and counted.
    """
    saved = load_map(folder)
    with _opened(old, columns) as first, _opened(new, columns) as second:
        if memory is not None:
            needed = saved.translator.array_bytes + checking_bytes(first, second, most)
            memory.require(needed, "measuring the pairs", instead="" if most == FEWEST else "pass --pairs")
        every = read_pairs(first, second, engine=engine)
    known = saved.saw(every.ids)
    others = np.flatnonzero(~known)
    pairs = (every.take(others) if FEWEST <= len(others) < len(every) else every).draw(most, seed)
    source, target = pairs.sides(saved.direction)
    if (source.shape[1], target.shape[1]) != saved.widths:
        raise DataError(
            f"pairs are {pairs.old.shape[1]} and {pairs.new.shape[1]} wide, and the map goes from "
            f"{saved.widths[0]} to {saved.widths[1]}",
            where=str(folder),
            fix="give the models that the map was fitted on, old first",
        )
    quality, old_alone = check_pairs(saved.translator, pairs, direction=saved.direction, k=k, seed=seed)
    seen = int(saved.saw(pairs.ids).sum())
    forecast = saved.about.get("quality", {}).get("forecast", {}).get("recall")
    left_out = 0 if seen else len(every) - len(others)
    return MapCheck(quality, old_alone, len(pairs), seen, left_out, forecast)


@contextlib.contextmanager
def _opened(reference: str, columns: Columns | None) -> Iterator[VectorSource]:
    source = open_source(reference, columns)
    try:
        yield source
    finally:
        source.close()


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
    over = ""
    if judgements is not None and judgements.corpus is None:
        native = judgements.ndcg(train.ids, train.new, None, k)
        old_ndcg = judgements.ndcg(train.ids, None, train.old, k)
        over = f"the {len(train):,} pairs that the maps were fitted on"
    elif judgements is not None and judgements.corpus is not None:
        rows, missing = judgements.corpus.rows, judgements.missing()
        native = judgements.ndcg(pairs.ids, pairs.new, None, k) if len(pairs) == rows else None
        old_ndcg = judgements.search(None, k, by_old=True)
        over = f"all {rows:,} rows of the old index"
        over += f" ({missing:,} judged documents are not among them)" if missing else ""
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
        advice=advise(chosen, old, len(pairs), settings, old_ndcg, over),
        direction=settings.direction,
        pairs=len(pairs),
        held=prepared.held,
        suspects=[(str(train.ids[row]), int(pairing.ranks[row])) for row in pairing.wrong],
        query_side=_query_side(chosen.translator, prepared, k) if as_query else None,
        ndcg_native=native,
        ndcg_old=old_ndcg,
        judged_over=over,
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


def advise(
    chosen: MapTrial,
    old_alone: float,
    pairs: int,
    settings: FitSettings,
    ndcg_old: float | None,
    over: str = "",
) -> list[str]:
    """Return the advice for what is at hand; where the settings do not say, for every case.

    The reason behind it: on SciFact and Cranfield rows translated with 500 to 4,000 pairs ranked relevant
    documents worse than the old model left alone, by 0.03 to 0.16 of nDCG, although they agreed more with the
    new model's neighbours.
    """
    lines = [
        f"The forecast ({chosen.forecast.recall:.2f} of the new model's top 10 found, document to document, "
        f"against {old_alone:.2f} for the old index left alone) says how far translated rows agree with the "
        "new model, not how well they rank: in our measurements the old model alone ranked relevant "
        "documents better than translated rows did."
    ]
    if chosen.ndcg is not None and ndcg_old is not None:
        better = "the old index as it is" if ndcg_old >= chosen.ndcg else "translated rows"
        figures = f"nDCG {ndcg_old:.3f} old, {chosen.ndcg:.3f} translated{f', over {over}' if over else ''}"
        lines.append(f"On your own judgements {better} ranks better: {figures}.")
    if chosen.fused is not None and ndcg_old is not None:
        lines.append(f"Fused scores of translated and old rows give nDCG {chosen.fused:.3f}.")
    for (texts, old_encoder), line in CASES.items():
        if settings.texts in (None, texts) and settings.old_encoder in (None, old_encoder):
            lines.append(line)
    if settings.texts is False and not chosen.translator.bends and pairs >= ENOUGH_TO_BEND:
        lines.append(
            "With this many pairs the kernel map usually beats a linear one: compare with --method kernel."
        )
    return lines
