"""Couplings of two label distributions with little entropy, and finite worlds in which Theorem 7 is exact.

FLD at a feature u (Definition 5) is the least E_z H[Λ(·|z)] over kernels Λ that carry D_s(z|u) to D_τ(z'|u).
With the joint J(z, z') = D_s(z|u) Λ(z'|z) it is min H(J) − H(D_s(·|u)): a coupling of least entropy. The
entropy is concave, so a vertex of the couplings attains the minimum; finding it is NP-hard in general, and
the greedy coupling is within one bit.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def entropy(probabilities: Any, axis: int = -1) -> Array:
    """Return −Σ p log p in nats along an axis, with 0 log 0 = 0."""
    found = np.asarray(probabilities, dtype=np.float64)
    logs = np.log(np.where(found > 0, found, 1.0))
    return np.asarray(-(found * logs).sum(axis))


def greedy_couplings(first: Any, second: Any) -> Array:
    """Return, for every row, the joint table that matches the two largest remaining masses again and again.

    Args:
        first: distributions [rows, n].
        second: distributions [rows, m].

    Returns:
        Tables [rows, n, m] whose sums are the two distributions; their entropy exceeds the least by at most
        one bit (log 2 nats).
    """
    left, right = np.array(first, dtype=np.float64), np.array(second, dtype=np.float64)
    rows, n = left.shape
    m = right.shape[1]
    table, each = np.zeros((rows, n, m)), np.arange(rows)
    for _ in range(n + m - 1):  # every match uses up one of the two masses
        i, j = left.argmax(1), right.argmax(1)
        moved = np.minimum(left[each, i], right[each, j])
        table[each, i, j] += moved
        left[each, i] -= moved
        right[each, j] -= moved
    return table


def least_entropy_coupling(first: Any, second: Any) -> Array:
    """Return the coupling [n, m] of least entropy, by listing every vertex; for a handful of labels only."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    n, m = len(p), len(q)
    kept, inverses = _bases(n, m)
    solved = inverses @ np.concatenate([p, q])[:-1]
    valid = (solved >= -1e-12).all(1)
    tables = np.zeros((int(valid.sum()), n * m))
    np.put_along_axis(tables, kept[valid], solved[valid].clip(min=0.0), 1)
    best: Array = tables[entropy(tables).argmin()].reshape(n, m)
    return best


@functools.cache
def _bases(n: int, m: int) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the sets of n + m − 1 entries that the sums determine, and the inverses of their systems."""
    system = np.zeros((n + m, n * m))
    for i in range(n):
        system[i, i * m : (i + 1) * m] = 1.0
    for j in range(m):
        system[n + j, j::m] = 1.0
    chosen = np.array(list(itertools.combinations(range(n * m), n + m - 1)))
    squares = system[:-1, chosen].transpose(1, 0, 2)  # the last sum follows from the others
    regular = np.abs(np.linalg.det(squares)) > 0.5  # the system is totally unimodular
    return chosen[regular], np.linalg.inv(squares[regular])


def distortions(source: Any, target: Any) -> Array:
    """Return FLD(u) for every row by the greedy coupling: H(coupling) − H(D_s(·|u)) in nats, at least 0."""
    left = np.asarray(source, dtype=np.float64)
    found = entropy(greedy_couplings(left, target).reshape(len(left), -1)) - entropy(left)
    return np.maximum(found, 0.0)


def least_distortions(source: Any, target: Any) -> Array:
    """Return a lower bound of FLD(u) that needs no coupling: max(0, H(D_τ(·|u)) − H(D_s(·|u)))."""
    return np.maximum(entropy(target) - entropy(source), 0.0)


def table_distortion(source: Any, codes: Any, classes: int) -> float:
    """Return Eq. (21), H(Z'|Z) of the whole set, from the soft table J = mean of p_s(z|u) · 1[z' = label]."""
    found = np.asarray(source, dtype=np.float64)
    table = found.T @ (np.asarray(codes)[:, None] == np.arange(classes)) / len(found)
    return float(entropy(table.ravel()) - entropy(table.sum(1)))


def divergence(first: Any, second: Any) -> Array:
    """Return KL(first‖second) in nats for every row."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    logs = np.log(np.where(p > 0, p, 1.0)) - np.log(np.maximum(q, 1e-300))
    return np.asarray(np.where(p > 0, p * logs, 0.0).sum(-1))
