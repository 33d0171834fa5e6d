"""How good a map is: forecasts of rows it never saw, thresholds, variance."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from sklearn.base import clone

from transship.errors import DataError
from transship.numerics import derive_seed
from transship.types import Array
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.maps.vectors import neighbours, overlap, unit_rows

FOLDS = 10
# rows that rankings are measured on; more would only narrow the spread
MOST_QUERIES = 2000


@dataclass(frozen=True)
class MapQuality:
    """What was measured of a map, document to document.

    Attributes:
        cosine: mean cosine of a translated row with its native partner.
        twin_recall: how often a native row finds its own translated twin first.
        recall: overlap of the top k over translated rows with the top k over native rows, own row left out.
        k: that k.
        gallery: how many rows were searched.
    """

    cosine: float
    twin_recall: float
    recall: float
    k: int
    gallery: int

    def to_dict(self) -> dict[str, float | int]:
        return asdict(self)


def measure(
    translated: Array, native: Array, *, k: int = 10, seed: int = 0, queries: Array | None = None
) -> MapQuality:
    """Measure translated rows against their native partners.

    Queries are native rows: those that `queries` numbers, else all, drawn by seed when there are many.
    """
    if len(translated) != len(native) or len(native) < 2:
        raise DataError(f"{len(native)} rows", where="quality", fix="give two or more pairs")
    k = min(k, len(native) - 1)
    rng = np.random.default_rng(derive_seed(seed, "queries"))
    asked = np.arange(len(native)) if queries is None else queries
    drawn = np.sort(rng.permutation(asked)[:MOST_QUERIES])
    cosines = (unit_rows(translated[asked]) * unit_rows(native[asked])).sum(1)
    ranked = neighbours(native[drawn], translated, k + 1)
    own = ranked == drawn[:, None]
    # the own row, where it is among the k + 1 first, goes to the end and is left out
    nearest = np.take_along_axis(ranked, np.argsort(own, axis=1, kind="stable"), 1)[:, :k]
    twins = own[:, 0]
    expected = neighbours(native[drawn], native, k, own=drawn)
    return MapQuality(float(cosines.mean()), float(twins.mean()), overlap(nearest, expected), k, len(native))


def old_alone(old: Array, new: Array, *, k: int = 10, seed: int = 0) -> float:
    """Return what the untouched old index gives: overlap of the old model's top k with the new model's."""
    k = min(k, len(new) - 1)
    rng = np.random.default_rng(derive_seed(seed, "queries"))
    drawn = np.sort(rng.permutation(len(new))[:MOST_QUERIES])
    return overlap(neighbours(old[drawn], old, k, own=drawn), neighbours(new[drawn], new, k, own=drawn))


def out_of_sample(translator: Translator, old: Array, new: Array, *, seed: int = 0) -> Array:
    """Return for each pair a prediction that never saw it: leave-one-out in closed form, else ten folds."""
    if translator.closed_form:
        predictions: Array = np.asarray(translator.leave_one_out(old, new))
        return predictions
    predictions = np.empty((len(old), new.shape[1]), dtype=np.float32)
    for kept, held in folds(len(old), seed=seed):
        predictions[held] = clone(translator).fit(old[kept], new[kept]).transform(old[held])
    return predictions


def folds(count: int, *, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """Yield (rows to fit on, rows held out) ten times, so that every row is held out once."""
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(count)
    for fold in range(min(FOLDS, count)):
        held = order[fold::FOLDS]
        yield np.setdiff1d(order, held), held


def restore_variance(translator: Translator, predictions: Array, target: Array) -> Translator:
    """Return the map followed by a stretch that gives translated rows the spread of native ones.

    Predictions shrink where the anchors say little. Along each principal axis of the target they are
    multiplied by sd(target) / sd(prediction), predictions out of sample; the map stays what it was (linear,
    kernel) with other weights. Where translated and native rows stand in one index this is necessary:
    otherwise translated rows score too high.
    """
    axes, ratio = variance_axes(predictions, target)
    restored = copy.deepcopy(translator)
    restored.fold_output((axes * ratio) @ axes.T, target.astype(np.float64).mean(0))
    restored.restored_ = True
    return restored


def variance_axes(predictions: Array, target: Array) -> tuple[Array, Array]:
    """Return the target's principal axes [width, width] and, per axis, sd(target) / sd(prediction)."""
    mean = target.astype(np.float64).mean(0)
    centred = target.astype(np.float64) - mean
    values, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    kept = values > 1e-9 * values[-1]
    spread = ((predictions.astype(np.float64) - mean) @ axes).std(0)
    # an axis on which nothing is predicted has nothing to stretch; tenfold is where noise takes over
    ratio = np.where(kept & (spread > 0), np.sqrt(values.clip(0)) / np.maximum(spread, 1e-30), 1.0).clip(
        0.0, 10.0
    )
    return axes, ratio


def stretch(rows: Array, target: Array, axes: Array, ratio: Array) -> Array:
    """Return rows stretched along the axes about the target's mean."""
    mean = target.astype(np.float64).mean(0)
    moved: Array = mean + ((rows.astype(np.float64) - mean) @ axes * ratio) @ axes.T
    return moved


def map_thresholds(old: Array, new: Array, thresholds: Array, *, seed: int = 0) -> Array:
    """Return the score of the new space that as many pairs pass as pass each threshold in the old space.

    Cosines of all pairs among some 2,000 rows, in both spaces: equal shares above the old and the new score.
    Below the reach of the data the nearest observed score is returned.
    """
    rng = np.random.default_rng(derive_seed(seed, "thresholds"))
    some = rng.permutation(len(old))[:MOST_QUERIES]
    left, right = unit_rows(old[some]), unit_rows(new[some])
    above = np.triu_indices(len(some), 1)
    before, after = (np.sort((side @ side.T)[above]) for side in (left, right))
    share = np.searchsorted(before, np.asarray(thresholds, dtype=np.float32)) / len(before)
    mapped: Array = np.quantile(after, np.clip(share, 0.0, 1.0))
    return mapped
