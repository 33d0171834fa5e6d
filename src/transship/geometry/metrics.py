"""Pure metrics: what verbs and suites report. NumPy or torch in, numbers or NumPy out."""

from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int, Shaped

from transship.errors import DataError
from transship.numerics import chunks

Array = npt.NDArray[Any]


def cosine(a: Shaped[Any, "rows width"], b: Shaped[Any, "rows width"]) -> Float[np.ndarray, " rows"]:
    """Return the cosine of each row of `a` with the same row of `b`; 0 where either is zero."""
    left, right = _floats(a), _floats(b)
    _same_length(left, right, "cosine")
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    result: Array = np.divide((left * right).sum(-1), norms, out=np.zeros_like(norms), where=norms > 0)
    return result


def accuracy(predicted: Shaped[Any, " rows"], labels: Shaped[Any, " rows"]) -> float:
    """Return the share of equal labels."""
    left, right = _array(predicted), _array(labels)
    _same_length(left, right, "accuracy")
    return float((left == right).mean())


def balanced_accuracy(predicted: Shaped[Any, " rows"], labels: Shaped[Any, " rows"]) -> float:
    """Return the mean over the labels that occur of the share of their rows that are right."""
    left, right = _array(predicted), _array(labels)
    _same_length(left, right, "balanced accuracy")
    return float(np.mean([(left[right == label] == label).mean() for label in np.unique(right)]))


def top_k(
    queries: Shaped[Any, "queries width"],
    gallery: Shaped[Any, "gallery width"],
    k: int,
    *,
    exclude: Shaped[Any, " queries"] | None = None,
    chunk: int = 1024,
) -> Int[np.ndarray, "queries k"]:
    """Return, per query, the k rows of the gallery of largest cosine, best first (ties: the lower row first).

    Args:
        queries: rows to look for.
        gallery: rows to search.
        k: how many.
        exclude: per query, one row of the gallery that does not count (the query itself), or −1.
        chunk: queries compared at a time.
    """
    left, right = _unit(_floats(queries)), _unit(_floats(gallery))
    own = None if exclude is None else _array(exclude)
    most = right.shape[0] - (own is not None)
    if not 1 <= k <= most:
        raise DataError(f"cannot take {k} of {most} rows", where="top_k", fix="choose a smaller k")
    nearest = np.empty((left.shape[0], k), dtype=np.int64)
    for rows in chunks(left.shape[0], chunk):
        scores = left[rows] @ right.T
        if own is not None:
            has = own[rows] >= 0
            scores[np.flatnonzero(has), own[rows][has]] = -np.inf
        nearest[rows] = _best(scores, k)
    return nearest


def recall_at(
    found: Shaped[Any, "queries found"], relevant: Shaped[Any, "queries relevant"], k: int | None = None
) -> float:
    """Return the mean share of each query's `relevant` rows (its first k) among its first k `found` ones.

    With `relevant` the neighbours in another space, it is the overlap of two top-k lists.
    """
    left, right = _array(found), _array(relevant)
    _same_length(left, right, "recall")
    left, right = (left, right) if k is None else (left[:, :k], right[:, :k])
    if right.shape[1] == 0:
        raise DataError("there are no relevant rows", where="recall", fix="give at least one per query")
    return float((right[:, :, None] == left[:, None, :]).any(-1).mean())


def twin_recall(found: Shaped[Any, "queries found"], twins: Shaped[Any, " queries"], k: int = 1) -> float:
    """Return how often a query's one twin is among its first k found rows."""
    left, right = _array(found), _array(twins)
    _same_length(left, right, "twin recall")
    return float((left[:, :k] == right[:, None]).any(1).mean())


def reciprocal_rank(found: Shaped[Any, "queries found"], twins: Shaped[Any, " queries"]) -> float:
    """Return the mean of 1/rank of each query's twin, 0 when it was not found (MRR)."""
    left, right = _array(found), _array(twins)
    _same_length(left, right, "reciprocal rank")
    hits = left == right[:, None]
    return float(np.where(hits.any(1), 1.0 / (hits.argmax(1) + 1), 0.0).mean())


def ndcg_at(relevance: Shaped[Any, "queries gallery"], found: Shaped[Any, "queries found"], k: int) -> float:
    """Return the mean nDCG@k with linear gains: Σ_r rel(found_r)/log2(r + 1) over its largest possible value.

    Args:
        relevance: per query, how relevant each row of the gallery is (0 or more).
        found: per query, rows of the gallery, best first.
        k: how many of them count.

    Queries without a relevant row are left out, as they have no ideal order.
    """
    gains, order = _floats(relevance), _array(found)[:, :k]
    _same_length(gains, order, "nDCG")
    discounts = 1.0 / np.log2(np.arange(2, max(k, 1) + 2))
    reached = np.take_along_axis(gains, order, 1) @ discounts[: order.shape[1]]
    best = -np.sort(-gains, axis=1)[:, :k]
    ideal = best @ discounts[: best.shape[1]]
    if not (ideal > 0).any():
        raise DataError("no query has a relevant row", where="nDCG", fix="check the relevance")
    return float((reached[ideal > 0] / ideal[ideal > 0]).mean())


def pearson(a: Shaped[Any, " rows"], b: Shaped[Any, " rows"]) -> float:
    """Return the correlation of two columns; 0 when one is constant."""
    left, right = _floats(a), _floats(b)
    _same_length(left, right, "correlation")
    left, right = left - left.mean(), right - right.mean()
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / scale if scale > 0 else 0.0


def spearman(a: Shaped[Any, " rows"], b: Shaped[Any, " rows"]) -> float:
    """Return the rank correlation of two columns (ties share their mean rank)."""
    from scipy.stats import rankdata

    return pearson(rankdata(_array(a)), rankdata(_array(b)))


def relative_error(predicted: Shaped[Any, "..."], truth: Shaped[Any, "..."]) -> float:
    """Return ‖predicted − truth‖ / ‖truth‖ over all entries."""
    left, right = _floats(predicted), _floats(truth)
    _same_length(left, right, "relative error")
    scale = float(np.linalg.norm(right))
    gap = float(np.linalg.norm(left - right))
    return gap / scale if scale > 0 else (0.0 if gap == 0 else float("inf"))


def _array(values: Any) -> Array:
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def _floats(values: Any) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()  # bfloat16 has no NumPy type
    return np.asarray(values, dtype=np.float64)


def _unit(rows: Array) -> Array:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return unit


def _best(scores: Array, k: int) -> Array:
    """Return the columns of the k largest entries per row, in falling order, ties by column."""
    part = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(scores, part, 1), axis=1, kind="stable")
    return np.take_along_axis(part, order, 1)


def _same_length(a: Array, b: Array, where: str) -> None:
    if len(a) != len(b) or len(a) == 0:
        raise DataError(
            f"{len(a)} rows do not pair with {len(b)}", where=where, fix="give equal, non-empty sets"
        )
