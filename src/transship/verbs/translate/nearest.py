"""The nearest rows to queries by cosine, block by block."""

from __future__ import annotations

import numpy as np

from transship.types import Array

# bytes of scores at a time, with the order that is made of them
SCORES = 256_000_000


def unit_rows(rows: Array) -> Array:
    """Return rows of length 1 in float32; zero rows stay zero."""
    rows = np.asarray(rows, dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    result: Array = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return result


def score_rows(gallery: int) -> int:
    """Return how many queries are scored at once, so that scores and their order stay within SCORES bytes."""
    return max(1, min(512, SCORES // (16 * max(1, gallery))))


def neighbours(queries: Array, gallery: Array, k: int, own: Array | None = None) -> Array:
    """Return the k rows of the gallery nearest to each query by cosine, best first, `own` left out."""
    left, right = unit_rows(queries), unit_rows(gallery)
    nearest = np.empty((len(left), min(k, len(right) - (own is not None))), dtype=np.int64)
    block = score_rows(len(right))
    for start in range(0, len(left), block):
        scores = left[start : start + block] @ right.T
        if own is not None:
            scores[np.arange(len(scores)), own[start : start + len(scores)]] = -np.inf
        part = np.argpartition(-scores, nearest.shape[1] - 1, axis=1)[:, : nearest.shape[1]]
        order = np.argsort(-np.take_along_axis(scores, part, 1), axis=1, kind="stable")
        nearest[start : start + block] = np.take_along_axis(part, order, 1)
    return nearest


def overlap(ranked: Array, expected: Array) -> float:
    """Return the mean share of `expected` that is among `ranked`, row by row."""
    return float((expected[:, :, None] == ranked[:, None, :]).any(2).mean())
