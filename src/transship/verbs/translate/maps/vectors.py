"""Rows of vectors in numpy: their lengths, their nearest rows by cosine, their ids, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from transship.errors import DataError
from transship.types import Array

Indices = np.ndarray[Any, np.dtype[np.int64]]
# lengths whose squares float32 holds
_SMALLEST, _LARGEST = 1e-18, 1e18
# bytes of scores at a time, with the order that is made of them
SCORES = 256_000_000


def unit_rows(rows: Array) -> Array:
    """Return rows of length 1 in float32; zero rows stay zero."""
    rows = np.asarray(rows, dtype=np.float32)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
    beyond = np.flatnonzero((norms[:, 0] < _SMALLEST) | (norms[:, 0] > _LARGEST))
    if len(beyond):  # squares beyond float32: such rows are brought near 1 first
        largest = np.abs(rows[beyond]).max(axis=1, keepdims=True, initial=0.0)
        rows = rows.copy()
        rows[beyond] = np.divide(rows[beyond], largest, out=np.zeros_like(rows[beyond]), where=largest > 0)
        norms[beyond] = np.linalg.norm(rows[beyond], axis=1, keepdims=True)
    result: Array = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return result


def neighbours(queries: Array, gallery: Array, k: int, own: Array | None = None) -> Array:
    """Return the k rows of the gallery nearest to each query by cosine, best first, `own` left out."""
    left, right = unit_rows(queries), unit_rows(gallery)
    nearest = np.empty((len(left), min(k, len(right) - (own is not None))), dtype=np.int64)
    # so many queries at once that scores and their order stay within SCORES bytes
    block = max(1, min(512, SCORES // (16 * max(1, len(right)))))
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


def fuse(first: Array, second: Array, weight: float = 0.5) -> Array:
    """Return z(first)·(1 − w) + z(second)·w, row by row: two rankings of the same gallery as one."""
    fused: Array = (1.0 - weight) * _standard(first) + weight * _standard(second)
    return fused


def _standard(scores: Array) -> Array:
    spread = scores.std(axis=-1, keepdims=True)
    standard: Array = (scores - scores.mean(axis=-1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    return standard


def check_rows(rows: Array, where: str, ids: Any = None) -> None:
    """Refuse rows that hold NaN or infinity, and rows of zeros, which have no direction; name the first."""
    check_finite_rows(rows, where, ids, "hold NaN or infinity")
    zero = np.flatnonzero(rows[:, 0] == 0)  # few rows begin with a zero: only these are read whole
    _refuse_rows(zero[~rows[zero].any(axis=1)], len(rows), where, ids, "are all zero")


def check_finite_rows(rows: Array, where: str, ids: Any, what: str) -> None:
    """Refuse rows that hold NaN or infinity; `what` says how they came to it."""
    with np.errstate(over="ignore", invalid="ignore"):
        # the sum of a row shows NaN and infinity; it may overflow, so what it shows is looked at again
        broken = np.flatnonzero(~np.isfinite(rows.sum(axis=1)))
    _refuse_rows(broken[~np.isfinite(rows[broken]).all(axis=1)], len(rows), where, ids, what)


def _refuse_rows(places: Indices, count: int, where: str, ids: Any, what: str) -> None:
    if len(places):
        name = f"id {ids[places[0]]}" if ids is not None else f"row {places[0]}"
        raise DataError(
            f"{len(places)} of {count} vectors {what}, the first is {name}",
            where=where,
            fix="remove these rows or embed them again",
        )


def plain_id(identity: Any) -> Any:
    """Return a row's id as a Python value, as stores and JSON take it."""
    return identity.item() if isinstance(identity, np.generic) else identity


def anchors_hash(ids: Iterable[Any]) -> str:
    """Return a hash of the anchors' ids in their order; 1 and "1" count as the same id."""
    digest = hashlib.sha256()
    for identity in ids:
        text = str(identity).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()[:32]
