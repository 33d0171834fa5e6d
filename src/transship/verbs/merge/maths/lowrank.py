"""Low-rank updates as factors: cut to a rank, and merged in the small spaces that their factors span.

An update is up·down, with up [rows, rank] and down [rank, columns]. Neither space makes a dense update: with
R the sum of the ranks, the work is on matrices of R columns or rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from transship.verbs.merge.maths.operands import Floats

Factors = tuple[Floats, Floats]
# what a merge method makes of arrays of one shape
Join = Callable[[Sequence[Floats]], Floats]


def truncated(up: Floats, down: Floats, rank: int | None) -> Factors:
    """Return factors of the best approximation of up·down with at most `rank` columns (Eckart–Young).

    With QR of both factors only a small matrix is decomposed: up·down = Q_u (R_u R_dᵀ) Q_dᵀ.
    """
    if rank is None or up.shape[1] <= rank:
        return up, down
    left, first = np.linalg.qr(up.astype(np.float64))
    right, second = np.linalg.qr(down.T.astype(np.float64))
    cut_up, cut_down = factorised(first @ second.T, rank)
    return (left @ cut_up).astype(np.float32), (cut_down @ right.T).astype(np.float32)


def factorised(matrix: Floats, rank: int) -> Factors:
    """Return the best approximation of `matrix` of that rank as factors of equal share."""
    u, values, vt = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    root = np.sqrt(values[:rank])
    return (u[:, :rank] * root).astype(np.float32), (root[:, None] * vt[:rank]).astype(np.float32)


def in_full(pairs: Sequence[Factors], join: Join, rank: int) -> Factors:
    """Join the dense updates, and cut what comes out to `rank`."""
    return factorised(join([up @ down for up, down in pairs]), rank)


def in_core_space(pairs: Sequence[Factors], join: Join, rank: int) -> Factors:
    """Join the updates as they look in the bases that all factors span (Panariello et al., 2025, section 4).

    With U of the ups side by side and V of the downs one below the other, M_k = Uᵀ up_k · down_k V has at
    most R × R entries, and U join(M) Vᵀ is the result. Nothing is lost: U Uᵀ up_k = up_k.
    """
    left = _basis(np.concatenate([up for up, _ in pairs], axis=1))
    right = _basis(np.concatenate([down for _, down in pairs], axis=0).T)
    cores = [(left.T @ up) @ (down @ right) for up, down in pairs]
    core = join([core.astype(np.float32) for core in cores])
    up, down = factorised(core, min(rank, *core.shape))
    return (left @ up).astype(np.float32), (down @ right.T).astype(np.float32)


def in_knots(pairs: Sequence[Factors], join: Join, rank: int) -> Factors:
    """Join the updates' right parts in the left basis that they share (KnOTS, Stoica et al., 2025).

    [up_1·down_1 … up_K·down_K] = U Σ [V_1 … V_K] gives U Σ join(V). U and Σ come from the factors: with
    up·down = Q_u C Q_dᵀ only the R × R blocks C are decomposed.
    """
    left, _ = np.linalg.qr(np.concatenate([up for up, _ in pairs], axis=1).astype(np.float64))
    blocks, rights = [], []
    for up, down in pairs:
        right, triangle = np.linalg.qr(down.T.astype(np.float64))
        blocks.append((left.T @ up) @ triangle.T)
        rights.append(right)
    u, values, vt = np.linalg.svd(np.concatenate(blocks, axis=1), full_matrices=False)
    parts = np.split(vt, np.cumsum([block.shape[1] for block in blocks])[:-1], axis=1)
    joined = join([(part @ right.T).astype(np.float32) for part, right in zip(parts, rights, strict=True)])
    return truncated((left @ (u * values)).astype(np.float32), joined, rank)


def _basis(matrix: Floats) -> Floats:
    """Return an orthonormal basis of the columns of `matrix`, those that round to nothing left out."""
    u, values, _ = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    kept: Floats = u[:, values > 1e-10 * values[0]] if values.size and values[0] > 0 else u[:, :1]
    return kept


SPACES = {"full": in_full, "core": in_core_space, "knots": in_knots}
