"""The numbers behind IRP: which anchors are far apart, and pseudo-inverses of anchor matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from transship.numerics import derive_seed
from transship.verbs.translate.maps.base import unit
from transship.verbs.translate.maps.vectors import Indices

# eigenvalues of a Gram matrix below this share of the largest count as zero: centring by the anchors' own
# mean makes their rows dependent, and float64 leaves that zero at some 1e-16 times the number of rows
RELATIVE_CUT = 1e-10


@dataclass(frozen=True)
class AnchorInverse:
    """(Aᵀ)⁺ of unit anchor rows A [anchors, width] and what is known about it.

    Attributes:
        matrix: (Aᵀ)⁺, [anchors, width].
        rank: directions kept.
        condition: ratio of the largest to the smallest kept singular value of A.
    """

    matrix: Tensor
    rank: int
    condition: float


def invert_anchors(anchors: Tensor) -> AnchorInverse:
    """Return (Aᵀ)⁺ = A (AᵀA)⁺, from the smaller of the two Gram matrices, in float64.

    A plain inverse would do for independent rows only; here the directions that the anchors do not span
    (eigenvalues below 1e-10 of the largest) are left out.
    """
    anchors = anchors.double()
    count, width = anchors.shape
    inverse, rank, condition = _invert(anchors.T @ anchors if count >= width else anchors @ anchors.T)
    return AnchorInverse(anchors @ inverse if count >= width else inverse @ anchors, rank, condition)


def tikhonov_anchors(anchors: Tensor, strength: float) -> AnchorInverse:
    """Return A (AᵀA + λI)⁻¹ with λ = `strength` × the mean eigenvalue of AᵀA: no pruning, no chance.

    The condition number is that of the regularised matrix' square root, so that it compares with
    `invert_anchors`.
    """
    anchors = anchors.double()
    gram = anchors.T @ anchors
    gram.diagonal().add_(strength * float(gram.diagonal().mean()))
    inverse, rank, condition = _invert(gram)
    return AnchorInverse(anchors @ inverse, rank, condition)


def _invert(gram: Tensor) -> tuple[Tensor, int, float]:
    """Return G⁺, its rank and √(largest / smallest kept eigenvalue) of a Gram matrix G.

    Where no eigenvalue falls below the cut, the inverse comes from the Cholesky factor, and eigenvalues
    without their vectors are enough: about half the cost.
    """
    factor, failed = torch.linalg.cholesky_ex(gram)
    # the least eigenvalue is at most the least squared pivot, the largest at most the trace
    least = float(factor.diagonal().square().min()) if len(gram) and not int(failed) else 0.0
    if least > RELATIVE_CUT * float(gram.diagonal().sum()):
        values = torch.linalg.eigvalsh(gram)
        if values[0] > RELATIVE_CUT * values[-1]:
            return torch.cholesky_inverse(factor), len(gram), float((values[-1] / values[0]).sqrt())
    values, vectors = torch.linalg.eigh(gram)
    kept = values > RELATIVE_CUT * values[-1].clamp_min(torch.finfo(torch.float64).tiny)
    values, vectors = values[kept], vectors[:, kept]
    condition = float((values[-1] / values[0]).sqrt()) if len(values) else 1.0
    inverse: Tensor = (vectors / values) @ vectors.T
    return inverse, int(kept.sum()), condition


def farthest_points(distances: Tensor, *, start: int, delta: float = 0.0, most: int | None = None) -> Indices:
    """Return the indices that greedy farthest point sampling picks from a distance matrix, in order.

    Each step takes the row whose smallest distance to those taken is largest (the lowest index among equals);
    it stops when that distance is below `delta`, or when `most` are taken. Eq. (4) of Maiorca et al.,
    "Latent Space Translation via AnchorInverse Relative Projection". Shapes: [anchors, anchors] → [kept].
    """
    return _from_starts(distances, [start], delta, most)[0]


def _from_starts(distances: Tensor, starts: list[int], delta: float, most: int | None) -> list[Indices]:
    """Return the picks from every start; all of them take their next step together."""
    own, last = torch.arange(len(starts)), torch.tensor(starts)
    nearest = distances[last]
    nearest[own, last] = -torch.inf
    taken, kept = [last], torch.ones(len(starts), dtype=torch.int64)
    for _ in range((len(distances) if most is None else min(most, len(distances))) - 1):
        distance, last = nearest.max(dim=1)
        # distances to those taken only fall: a start that has stopped stays so
        going = distance >= delta
        if not bool(going.any()):
            break
        taken.append(last)
        kept += going
        torch.minimum(nearest, distances[last], out=nearest)
        nearest[own, last] = -torch.inf
    picks = torch.stack(taken, dim=1).numpy()
    return [row[:count] for row, count in zip(picks, kept.tolist(), strict=True)]


def angular_distances(rows: Tensor) -> Tensor:
    """Return 1 − |cos| between all rows: opposite directions are as collinear as equal ones. Eq. (3)."""
    directions = unit(rows)
    return (directions @ directions.T).abs_().neg_().add_(1.0)


def subspace_indices(
    distances: Tensor, *, subspaces: int, delta: float, most: int | None, seed: int
) -> list[Indices]:
    """Return ω index lists, each from a random start of its own (drawn by seed and number, not by order)."""
    seeds = (derive_seed(seed, "irp start", number) for number in range(subspaces))
    starts = [int(np.random.default_rng(number).integers(len(distances))) for number in seeds]
    return _from_starts(distances, starts, delta, most)
