"""Fit: which method, how good, and what to do with it. Every figure is of rows that the map never saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from transship.errors import DataError, NumericalError
from transship.registry import build_method, method_class
from transship.verbs.translate.fit.advice import advise
from transship.verbs.translate.fit.pairs import Pairing, Pairs, find_wrong_pairs
from transship.verbs.translate.fit.quality import (
    Quality,
    fuse,
    map_thresholds,
    measure,
    ndcg,
    old_alone,
    out_of_sample,
    restore_variance,
    stretch,
    variance_axes,
)
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.nearest import neighbours, overlap, unit_rows

Array = np.ndarray[Any, Any]
Direction = Literal["index", "query"]
CANDIDATES = ("procrustes", "ridge", "kernel", "irp")
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# a kernel map of more anchors than this would not fit into memory or patience
KERNEL_MOST = 12_000
# simpler maps win within this difference of forecast recall
TIE = 0.005
# pairs that look wrong: from this share on, and this number of them, they are refused
WRONG_SHARE, WRONG_LEAST = 0.01, 2
# numbers of pairs on the page's curve
CURVE = (100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class Candidate:
    """One method as it did on these pairs.

    Attributes:
        name: the method.
        translator: fitted on the pairs that were not held out.
        forecast: of rows left out (leave-one-out or folds), among the fitted pairs.
        held_out: of pairs that were set aside.
        seconds: CPU seconds of one fit.
        ndcg: with relevance given, nDCG@k over rows out of sample.
        fused: the same for fused translated and old scores.
        restored: whether variance restoring is part of it.
    """

    name: str
    translator: Translator
    forecast: Quality
    held_out: Quality
    seconds: float
    ndcg: float | None = None
    fused: float | None = None
    restored: bool = False


@dataclass(frozen=True)
class Relevance:
    """Queries with judgements: vectors of both models, and {query row: {document id: grade}}."""

    new: Array
    grades: Mapping[int, Mapping[str, float]]
    old: Array | None = None


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
class Fit:
    """What came out of fitting: the map, why this one, and every figure to see before using it.

    `chosen.translator` was fitted without the pairs `held`, `translator` with all; `suspects` are ids of
    pairs that do not seem to belong together, with the rank of their partner.
    """

    chosen: Candidate
    translator: Translator
    why: str
    candidates: Sequence[Candidate]
    old_alone: float
    pairing: Pairing
    thresholds: Sequence[tuple[float, float]]
    advice: Sequence[str]
    direction: Direction
    pairs: int
    held: Pairs
    suspects: Sequence[tuple[str, int]] = ()
    query_side: QuerySide | None = None
    ndcg_native: float | None = None
    ndcg_old: float | None = None
    curve: Sequence[tuple[str, int, float]] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

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
    pairs: Pairs,
    *,
    method: str = "auto",
    options: Mapping[str, Any] | None = None,
    direction: Direction = "index",
    held_out: float = 0.1,
    k: int = 10,
    restore: bool | None = None,
    gate: float = 0.25,
    force: bool = False,
    relevance: Relevance | None = None,
    texts: bool | None = None,
    old_encoder: bool | None = None,
    curve: bool = False,
    seed: int = 0,
    watch: Callable[[str], None] = lambda text: None,
    kernel_most: int = KERNEL_MOST,
) -> Fit:
    """Fit the candidates, forecast them, choose one and refit it on all pairs.

    Wrong pairing is refused, and below `gate` (forecast recall@k) no map is returned, unless `force`. Of more
    pairs than `kernel_most` a kernel map is no candidate.
    """
    kept, held = pairs.split(held_out, seed)
    if len(held) < 20:
        raise DataError(
            f"{len(pairs)} pairs leave {len(held)} to hold out",
            where="--held-out",
            fix="give more pairs or a larger share",
        )
    pairing = _guard(*_sides(kept, direction), kept.ids, force)
    names = _names(method, len(pairs), kernel_most)
    if method == "auto" and "kernel" not in names:
        watch(f"kernel is left out: {len(pairs):,} pairs are more than the {kernel_most:,} that fit")
    candidates = []
    for name in names:
        watch(f"fitting {name} on {len(kept):,} pairs")
        made = build_method("translate", name, options if method != "auto" else None)
        if name == "kernel" and direction == "index" and "inverse" not in (options or {}):
            made = made.set_params(inverse=False)  # the way back would cost as much again
        candidates.append(_candidate(name, made, kept, held, direction, k, restore, relevance, seed))
    chosen, why = _choose(candidates)
    if chosen.forecast.recall < gate and not force:
        raise NumericalError(
            f"the best map ({chosen.name}) is forecast to find {chosen.forecast.recall:.0%} of the top {k}, "
            f"below the gate of {gate:.0%}",
            where="quality",
            fix="give more pairs, re-embed, or pass --force to write it all the same",
        )
    watch(f"refitting {chosen.name} on all {len(pairs):,} pairs")
    sides = _sides(pairs, direction)
    translator = chosen.translator.settled().fit(*sides, ids=pairs.ids)
    if chosen.restored:
        translator = restore_variance(translator, out_of_sample(translator, *sides, seed=seed), sides[1])
    mapped = map_thresholds(pairs.old, pairs.new, np.asarray(THRESHOLDS), seed=seed)
    native, old_ndcg = _reference_ndcg(kept, relevance, k)
    old = old_alone(kept.old, kept.new, k=k, seed=seed)
    return Fit(
        chosen=chosen,
        translator=translator,
        why=why,
        candidates=candidates,
        old_alone=old,
        pairing=pairing,
        thresholds=[(before, float(after)) for before, after in zip(THRESHOLDS, mapped, strict=True)],
        advice=advise(
            recall=chosen.forecast.recall,
            old=old,
            pairs=len(pairs),
            method=chosen.name,
            texts=texts,
            old_encoder=old_encoder,
            ndcg=chosen.ndcg,
            ndcg_old=old_ndcg,
            fused=chosen.fused,
        ),
        direction=direction,
        pairs=len(pairs),
        held=held,
        suspects=[(str(kept.ids[row]), int(pairing.ranks[row])) for row in pairing.wrong],
        query_side=_query_side(chosen.translator, kept, held, k) if direction == "query" else None,
        ndcg_native=native,
        ndcg_old=old_ndcg,
        curve=_curve(candidates, kept, held, direction, k, seed) if curve else (),
    )


def check_map(
    translator: Translator, pairs: Pairs, *, direction: Direction = "index", k: int = 10, seed: int = 0
) -> tuple[Quality, float]:
    """Measure a map on other pairs: its quality, and what the untouched old index gives there."""
    source, target = _sides(pairs, direction)
    return measure(translator.transform(source), target, k=k, seed=seed), old_alone(
        pairs.old, pairs.new, k=k, seed=seed
    )


def _guard(source: Array, target: Array, ids: Sequence[Any], force: bool) -> Pairing:
    """Refuse pairs that do not belong together, by what ridge predicts of each from the others."""
    ridge = build_method("translate", "ridge").fit(source, target)
    pairing = find_wrong_pairs(out_of_sample(ridge, source, target), target)
    if pairing.share > WRONG_SHARE and len(pairing.wrong) >= WRONG_LEAST and not force:
        some = ", ".join(str(ids[row]) for row in pairing.wrong[:5])
        if pairing.shuffled:
            what = f"{pairing.share:.0%} of the pairs do not belong together: the ids look shuffled"
        else:
            count = f"{len(pairing.wrong)} of {len(ids)} pairs ({pairing.share:.1%})"
            what = f"{count} do not belong together, such as {some}"
        raise DataError(
            what, where="pairs", fix="check how ids were given, drop these pairs, or pass --force"
        )
    return pairing


def _names(method: str, count: int, kernel_most: int) -> list[str]:
    if method != "auto":
        kind = method_class("translate", method)
        if not getattr(kind, "candidate", True):
            raise DataError(
                f"'{method}' maps into a shared space, not into the other model's",
                where="--method",
                fix="choose another",
            )
        return [method]
    return [name for name in CANDIDATES if name != "kernel" or count <= kernel_most]


def _candidate(
    name: str,
    made: Translator,
    kept: Pairs,
    held: Pairs,
    direction: Direction,
    k: int,
    restore: bool | None,
    relevance: Relevance | None,
    seed: int,
) -> Candidate:
    if name == "irp" and made.regularize is None and made.delta == 0.8:
        made = made.set_params(regularize=1.0)  # better than pruning at every number of anchors measured
    (source, target), (source_held, target_held) = _sides(kept, direction), _sides(held, direction)
    start = time.process_time()
    fitted = made.fit(source, target)
    seconds = time.process_time() - start
    predictions = out_of_sample(fitted, source, target, seed=seed)
    forecast = measure(predictions, target, k=k, seed=seed)
    restored = _worth_restoring(fitted, predictions, target, forecast, restore, k, seed)
    if restored is not None:
        fitted, predictions, forecast = restored
    # queries that were set aside, in a gallery as large as the forecast's, no row of which was seen
    rest = max(0, len(target) - len(target_held))
    gallery = np.vstack([fitted.transform(source_held), predictions[:rest]])
    natives = np.vstack([target_held, target[:rest]])
    quality = measure(gallery, natives, k=k, seed=seed, queries=np.arange(len(target_held)))
    found = Candidate(name, fitted, forecast, quality, seconds, restored=restored is not None)
    if relevance is None or direction == "query":
        return found
    rows = _document_rows(kept.ids, relevance.grades)
    scores = unit_rows(relevance.new) @ unit_rows(predictions).T
    fused = None
    if relevance.old is not None:
        fused = ndcg(fuse(scores, unit_rows(relevance.old) @ unit_rows(kept.old).T), rows, k)
    return replace(found, ndcg=ndcg(scores, rows, k), fused=fused)


def _worth_restoring(
    fitted: Translator,
    predictions: Array,
    target: Array,
    forecast: Quality,
    restore: bool | None,
    k: int,
    seed: int,
) -> tuple[Translator, Array, Quality] | None:
    """Return the map with its variance restored when asked for, or when it costs no recall."""
    if restore is False or not fitted.closed_form or (restore is None and len(target) < 1000):
        return None
    restored = restore_variance(fitted, predictions, target)
    # the stretch alone, on predictions out of sample: what it does to rows that the map has not seen
    moved = stretch(predictions, target, *variance_axes(predictions, target))
    quality = measure(moved, target, k=k, seed=seed)
    lost = max(forecast.recall - quality.recall, forecast.twin_recall - quality.twin_recall)
    if restore is None and lost > TIE:
        return None
    return restored, moved, quality


def _choose(candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
    best = max(candidates, key=lambda one: one.forecast.recall)
    simple = next(one for one in candidates if one.forecast.recall >= best.forecast.recall - TIE)
    if len(candidates) == 1:
        return best, f"{best.name} was asked for"
    if simple is not best:
        gap = best.forecast.recall - simple.forecast.recall
        return simple, f"{simple.name} is within {gap:.3f} of {best.name} in forecast recall and simpler"
    others = max((one.forecast.recall for one in candidates if one is not best), default=0.0)
    return best, f"{best.name} has the best forecast recall, {best.forecast.recall:.3f} against {others:.3f}"


def _document_rows(
    ids: Sequence[Any], grades: Mapping[int, Mapping[str, float]]
) -> dict[int, dict[int, float]]:
    places = {str(identity): row for row, identity in enumerate(ids)}
    return {
        query: found
        for query, given in grades.items()
        if (found := {places[name]: grade for name, grade in given.items() if name in places})
    }


def _reference_ndcg(kept: Pairs, relevance: Relevance | None, k: int) -> tuple[float | None, float | None]:
    if relevance is None:
        return None, None
    rows = _document_rows(kept.ids, relevance.grades)
    native = ndcg(unit_rows(relevance.new) @ unit_rows(kept.new).T, rows, k)
    if relevance.old is None:
        return native, None
    return native, ndcg(unit_rows(relevance.old) @ unit_rows(kept.old).T, rows, k)


def _query_side(translator: Translator, kept: Pairs, held: Pairs, k: int) -> QuerySide | None:
    """Measure translated queries on the untouched old rows, with and without the target's mean."""
    if not hasattr(translator, "direction"):
        return None
    gallery = kept.old
    old_best, new_best = neighbours(held.old, gallery, k), neighbours(held.new, kept.new, k)

    def both(queries: Array) -> tuple[float, float]:
        found = neighbours(queries, gallery, k)
        return overlap(found, old_best), overlap(found, new_best)

    return QuerySide(both(translator.transform(held.new)), both(translator.direction(held.new)))


def _curve(
    candidates: Sequence[Candidate], kept: Pairs, held: Pairs, direction: Direction, k: int, seed: int
) -> list[tuple[str, int, float]]:
    """Return recall by method and by number of anchors, for the page: among the rows held out, at any number.

    With as many as there are, the map is the candidate itself.
    """
    rows, natives = _sides(held, direction)
    found = []
    for one in candidates:
        for size in (*(size for size in CURVE if size < len(kept)), len(kept)):
            fitted = one.translator
            if size < len(kept):
                fitted = fitted.settled().fit(*_sides(kept.take(np.arange(size)), direction))
            quality = measure(fitted.transform(rows), natives, k=k, seed=seed)
            found.append((one.name, size, quality.recall))
    return found


def _sides(pairs: Pairs, direction: Direction) -> tuple[Array, Array]:
    """Return the rows to map and what they should become."""
    return (pairs.old, pairs.new) if direction == "index" else (pairs.new, pairs.old)
