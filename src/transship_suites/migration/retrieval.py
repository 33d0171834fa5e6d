"""Judged retrieval sets: whether translated, rescored and half moved indexes still rank what is relevant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transship.verbs.translate import InverseRelativeProjection, KernelRidge, Procrustes, Ridge, fuse, ndcg
from transship.verbs.translate.fit.quality import folds, stretch, variance_axes
from transship.verbs.translate.maps.vectors import neighbours, overlap, unit_rows
from transship_suites.materials.embeddings import collection, latentis_recipe, vectors
from transship_suites.runner import Case, Context, Measurement

K = 10
Judge = Callable[[Any], dict[str, float]]


def measure(case: Case, context: Context) -> Iterator[Measurement]:
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
            moved, restored = _out_of_sample(method, old, new, chosen)
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


def _out_of_sample(method: Any, old: Any, new: Any, chosen: Any) -> tuple[Any, Any]:
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
