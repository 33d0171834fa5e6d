"""Changing encoders: agreement with the native index on WordNet glosses, and judged retrieval sets.

On glosses: what translated rows find of the new model's own top 10. On judged sets: whether translated,
rescored and half moved indexes still rank what is relevant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transship.verbs.translate import InverseRelativeProjection, KernelRidge, Procrustes, Ridge, fuse, ndcg
from transship.verbs.translate.fit.anchors import choose_rows
from transship.verbs.translate.fit.pairs import find_wrong_pairs
from transship.verbs.translate.fit.quality import (
    folds,
    out_of_sample,
    restore_variance,
    stretch,
    variance_axes,
)
from transship.verbs.translate.fit.quality import measure as measure_quality
from transship.verbs.translate.maps.vectors import neighbours, overlap, unit_rows
from transship_suites.materials.embeddings import collection, gloss_texts, latentis_recipe, vectors
from transship_suites.runner import Case, Context, Measurement

K = 10
Recall = Callable[[Any], float]


def measured(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one pair of encoders on one corpus."""
    return (measure_glosses if case["corpus"] == "glosses" else measure_retrieval)(case, context)


def measure_glosses(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one pair of encoders with every number of anchors."""
    options = context.options
    sizes = options["anchors"]
    texts = gloss_texts(max(sizes) + options["gallery"])
    old, new = (vectors(context, case[side], texts, "document") for side in ("source", "target"))
    order = np.random.default_rng(context.seed("anchors")).permutation(len(texts))
    rest = np.sort(order[max(sizes) :])
    asked = np.random.default_rng(context.seed("queries")).permutation(len(rest))[: options["queries"]]
    gallery = (old[rest], new[rest])
    best = neighbours(gallery[1][asked], gallery[1], K, own=asked)

    def recall(rows: Any) -> float:
        return overlap(neighbours(gallery[1][asked], rows, K, own=asked), best)

    alone = overlap(neighbours(gallery[0][asked], gallery[0], K, own=asked), best)
    yield Measurement({"method": "old model alone"}, {"recall": alone})
    settings: dict[str, float] = {}
    for size in sizes:
        chosen = np.sort(order[:size])
        pairs = (old[chosen], new[chosen])
        moved: dict[str, Any] = {}
        yield from _maps(pairs, gallery, recall, size, options["forecast"], settings, moved)
        yield from _rescored(pairs, gallery, moved["ridge"], asked, best, size)
        if size == options["forecast"]:
            yield from _guards(pairs, gallery[0], recall, moved, context)
        if size == min(sizes) and [case["source"], case["target"]] in options["ways"]:
            yield from _ways(old, new, np.sort(order[: max(sizes)]), gallery[0], recall, size, context)


def _maps(
    pairs: Any,
    gallery: Any,
    recall: Recall,
    size: int,
    forecast: int,
    settings: dict[str, float],
    moved: dict[str, Any],
) -> Iterator[Measurement]:
    """Measure every method, and leave its rows in `moved`.

    At the forecast's size also what leave-one-out says is measured, and a half moved index.
    """
    for name, method in _methods(settings).items():
        fitted = method.fit(*pairs)
        moved[name] = fitted.transform(gallery[0])
        metrics = {"recall": recall(moved[name])}
        if fitted.closed_form and size == forecast:
            predicted = out_of_sample(fitted, *pairs)
            left_out = measure_quality(predicted, pairs[1], k=K)
            held = measure_quality(moved[name][:size], gallery[1][:size], k=K)
            metrics["cosine gap"] = abs(left_out.cosine - held.cosine)
            metrics["recall gap"] = abs(left_out.recall - held.recall)
            if name == "kernel":
                yield from _mixed(fitted, predicted, pairs[1], gallery, moved[name], recall)
            else:
                moved["left out"] = predicted
        if name == "kernel" and size >= 2000:
            # more anchors would be tuned on 2,000 of them too: their settings are the same but for chance
            settings.update(gamma=fitted.width_factor_, alpha=fitted.penalty_)
        yield Measurement({"method": name, "anchors": size}, metrics)
    metrics = {"recall": recall(latentis_recipe(pairs[0], pairs[1], gallery[0]))}
    yield Measurement({"method": "latentis recipe", "anchors": size}, metrics)


def _mixed(
    fitted: Any, predicted: Any, target: Any, gallery: Any, moved: Any, recall: Recall
) -> Iterator[Measurement]:
    """Measure an index of which every second row is native by now and the others are translated."""
    restored = restore_variance(fitted, predicted, target).transform(gallery[0])
    for name, rows in (("half native", moved), ("half native, variance restored", restored)):
        mixed = unit_rows(rows)
        mixed[::2] = unit_rows(gallery[1])[::2]
        yield Measurement({"method": name}, {"recall": recall(mixed)})


def _rescored(
    pairs: Any, gallery: Any, moved: Any, asked: Any, best: Any, size: int
) -> Iterator[Measurement]:
    """Measure an untouched index: candidates by a translated query, ranked by translated or new vectors."""
    old, new = gallery
    queries = new[asked]
    nearest = neighbours(Procrustes().fit(pairs[1], pairs[0]).direction(queries), old, 100, own=asked)
    for count, name, rows in ((50, "rescoring 50", moved), (50, "lazy 50", new), (100, "lazy 100", new)):
        candidates, units = nearest[:, :count], unit_rows(rows)
        scores = np.stack(
            [units[row] @ query for row, query in zip(candidates, unit_rows(queries), strict=True)]
        )
        top = np.take_along_axis(candidates, np.argsort(-scores, axis=1, kind="stable")[:, :K], 1)
        yield Measurement({"method": name, "anchors": size}, {"recall": overlap(top, best)})


def _guards(
    pairs: Any, gallery: Any, recall: Recall, moved: dict[str, Any], context: Context
) -> Iterator[Measurement]:
    """Measure the pairing guard with none and with 5 % of the pairs wrong, and a constant target feature."""
    old, new = pairs
    clean = find_wrong_pairs(moved["left out"], new).share
    wrong = np.random.default_rng(context.seed("wrong")).choice(len(old), len(old) // 20, replace=False)
    mixed = new.copy()
    mixed[wrong] = new[np.roll(wrong, 1)]
    flagged = find_wrong_pairs(Ridge().fit(old, mixed).leave_one_out(old, mixed), mixed).share
    yield Measurement({"method": "pairing guard"}, {"flagged clean": clean, "flagged at 5 %": flagged})
    for name, method in (("procrustes", Procrustes()), ("ridge", Ridge())):
        dead = method.fit(old, np.insert(new, 7, np.float32(0.02), axis=1)).transform(gallery)
        change = abs(recall(np.delete(dead, 7, axis=1)) - recall(moved[name]))
        change += float(np.abs(dead[:, 7] - 0.02).max())
        yield Measurement({"method": name, "part": "constant feature"}, {"constant feature": change})


def _ways(
    old: Any, new: Any, pool: Any, gallery: Any, recall: Recall, size: int, context: Context
) -> Iterator[Measurement]:
    """Measure ridge on anchors that were chosen among the pool by farthest points or k-means."""
    ways: tuple[Any, ...] = ("farthest", "kmeans")
    for way in ways:
        rows = pool[choose_rows(old[pool], size, way=way, seed=context.seed("ways") % 2**31)]
        value = recall(Ridge().fit(old[rows], new[rows]).transform(gallery))
        yield Measurement({"method": f"ridge, {way} anchors", "anchors": size}, {"recall": value})


def _methods(settings: dict[str, float]) -> dict[str, Any]:
    kernel: dict[str, Any] = dict(settings)
    return {
        "IRP (paper)": InverseRelativeProjection(delta=0.8, subspaces=16, n_anchors=None, inverse=False),
        "IRP (Tikhonov)": InverseRelativeProjection(regularize=1.0, inverse=False),
        "procrustes": Procrustes(),
        "ridge": Ridge(),
        "kernel": KernelRidge(inverse=False, **kernel),
    }


Judge = Callable[[Any], dict[str, float]]


def measure_retrieval(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one pair of encoders on one collection, anchors from its documents only."""
    name = str(case["corpus"])
    documents, queries, relevance = collection(name, context.options["words"])
    sides = ("source", "target")
    old, new = (unit_rows(vectors(context, case[side], documents, "document")) for side in sides)
    old_asked, asked = (unit_rows(vectors(context, case[side], queries, "query")) for side in sides)
    old_scores, native = old_asked @ old.T, asked @ new.T
    whole, best = ndcg(native, relevance, K), neighbours(asked, new, K)

    def judge(scores: Any) -> dict[str, float]:
        value, top = ndcg(scores, relevance, K), np.argpartition(-scores, K - 1, axis=1)[:, :K]
        return {"nDCG kept": value / whole, "nDCG": value, "recall": overlap(top, best)}

    def among(candidates: Any, scores: Any) -> Any:
        kept = np.full_like(scores, -np.inf)
        np.put_along_axis(kept, candidates, np.take_along_axis(scores, candidates, 1), 1)
        return kept

    yield Measurement({"method": "old model alone"}, judge(old_scores))
    for count in (50, 100):
        scores = among(neighbours(old_asked, old, count), native)
        yield Measurement({"method": f"old query, lazy {count}"}, judge(scores))
    order = np.random.default_rng(context.seed("anchors")).permutation(len(documents))
    for size in context.options["retrieval anchors"][name]:
        chosen = np.sort(order[:size])
        at = {"anchors": size}
        query_map = Procrustes().fit(new[chosen], old[chosen]).direction(asked)
        for label, method in (("ridge", Ridge()), ("kernel", KernelRidge(inverse=False))):
            moved, restored = _all_rows(method, old, new, chosen)
            yield Measurement({"method": label, **at}, judge(asked @ moved.T))
            yield Measurement({"method": f"{label}, variance restored", **at}, judge(asked @ restored.T))
            if label == "ridge":
                nearest = neighbours(query_map, old, 50)
                yield Measurement({"method": "rescoring 50", **at}, judge(among(nearest, asked @ moved.T)))
            else:
                yield from _together(asked, moved, restored, new, old_scores, chosen, at, judge)
        yield from _by_folds(asked, old, new, chosen, at, judge)
        for count in (50, 100):
            scores = among(neighbours(query_map, old, count), native)
            yield Measurement({"method": f"lazy {count}", **at}, judge(scores))


def _all_rows(method: Any, old: Any, new: Any, chosen: Any) -> tuple[Any, Any]:
    """Return all rows by a map, as they are and with variance restored; anchors by leave-one-out.

    No row is scored by a map that saw it.
    """
    fitted = method.fit(old[chosen], new[chosen])
    moved = fitted.transform(old)
    moved[chosen] = fitted.leave_one_out(old[chosen], new[chosen])
    restored = stretch(moved, new[chosen], *variance_axes(moved[chosen], new[chosen]))
    return unit_rows(moved), unit_rows(restored)


def _together(
    asked: Any,
    moved: Any,
    restored: Any,
    new: Any,
    old_scores: Any,
    chosen: Any,
    at: dict[str, int],
    judge: Judge,
) -> Iterator[Measurement]:
    """Measure translated rows beside old scores, and beside the anchors' native rows in one index."""
    fused = judge(fuse(asked @ moved.T, old_scores))
    yield Measurement({"method": "kernel fused with old", **at}, fused)
    for name, rows in (("anchors native", moved), ("anchors native, variance restored", restored)):
        mixed = rows.copy()
        mixed[chosen] = new[chosen]
        yield Measurement({"method": name, **at}, judge(asked @ mixed.T))


def _by_folds(
    asked: Any, old: Any, new: Any, chosen: Any, at: dict[str, int], judge: Judge
) -> Iterator[Measurement]:
    """Measure methods whose leave-one-out has no closed form: their anchors' own rows come from ten folds."""
    x, y = old[chosen], new[chosen]
    methods: dict[str, Callable[[Any, Any, Any], Any]] = {
        "latentis recipe": latentis_recipe,
        "IRP (Tikhonov)": lambda a, b, rows: (
            InverseRelativeProjection(regularize=1.0, inverse=False).fit(a, b).transform(rows)
        ),
        "procrustes": lambda a, b, rows: Procrustes().fit(a, b).transform(rows),
    }
    for name, translate in methods.items():
        moved = translate(x, y, old)
        for kept, held in folds(len(chosen)):
            moved[chosen[held]] = translate(x[kept], y[kept], x[held])
        yield Measurement({"method": name, **at}, judge(asked @ unit_rows(moved).T))
