"""The numbers behind IRP: pseudo-inverses of anchor matrices by eigenvalues, with rank and condition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# eigenvalues of a Gram matrix below this share of the largest count as zero: centring by the anchors' own
# mean makes their rows dependent, and float64 leaves that zero at some 1e-16 times the number of rows
RELATIVE_CUT = 1e-10


@dataclass(frozen=True)
class Inverse:
    """(Aᵀ)⁺ of unit anchor rows A [anchors, width] and what is known about it.

    Attributes:
        matrix: (Aᵀ)⁺, [anchors, width].
        rank: directions kept.
        condition: ratio of the largest to the smallest kept singular value of A.
    """

    matrix: Tensor
    rank: int
    condition: float


def invert_anchors(anchors: Tensor) -> Inverse:
    """Return (Aᵀ)⁺ = A (AᵀA)⁺, from the smaller of the two Gram matrices, in float64.

    A plain inverse would do for independent rows only; here the directions that the anchors do not span
    (eigenvalues below 1e-10 of the largest) are left out.
    """
    anchors = anchors.double()
    count, width = anchors.shape
    inverse, rank, condition = _invert(anchors.T @ anchors if count >= width else anchors @ anchors.T)
    return Inverse(anchors @ inverse if count >= width else inverse @ anchors, rank, condition)


def tikhonov_anchors(anchors: Tensor, strength: float) -> Inverse:
    """Return A (AᵀA + λI)⁻¹ with λ = `strength` × the mean eigenvalue of AᵀA: no pruning, no chance.

    The condition number is that of the regularised matrix' square root, so that it compares with
    `invert_anchors`.
    """
    anchors = anchors.double()
    gram = anchors.T @ anchors
    gram.diagonal().add_(strength * float(gram.diagonal().mean()))
    inverse, rank, condition = _invert(gram)
    return Inverse(anchors @ inverse, rank, condition)


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
