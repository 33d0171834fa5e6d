"""How alike two representations are: linear CKA, Procrustes distance, alignment residual."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import DataError, NumericalError
from transship.geometry.moments import Moments


def cka(moments: Moments) -> float:
    """Return linear CKA = ‖S_ab‖² / (‖S_aa‖ ‖S_bb‖) about the means (Frobenius norms), from 0 to 1.

    Invariant to rotation and scale of either side. With fewer rows than some ten times the width it is biased
    upwards; `CkaAccumulator` is not.
    """
    used = moments.centred()
    sides = [float(torch.linalg.matrix_norm(used.part(part))) for part in ("aa", "bb")]
    if min(sides) <= 0.0:
        return 0.0  # a constant representation resembles nothing
    return float(used.part("ab").square().sum()) / (sides[0] * sides[1])


class CkaAccumulator:
    """Minibatch-unbiased linear CKA between all layers of two models, in fixed memory.

    HSIC_1 of a batch of n rows is ⟨K̃, L̃⟩ / (n (n − 3)), where K̃ and L̃ are the U-centred Gram matrices:
    zero diagonal, and every row's and column's sum removed so that the mean over draws is the population's
    HSIC. Sums of HSIC_1 over batches (weighted by n) are kept for every pair of layers and for every layer
    with itself; CKA is their ratio. A batch costs one Gram matrix per layer and one product of layers × n²
    matrices.

    Attributes:
        cross: Σ n HSIC_1(a_i, b_j).
        self_a: Σ n HSIC_1(a_i, a_i).
        self_b: Σ n HSIC_1(b_j, b_j).
        rows: the rows counted.
        skipped: rows of batches with fewer than four rows, for which HSIC_1 does not exist.
    """

    def __init__(self, layers_a: int, layers_b: int) -> None:
        self.cross = torch.zeros(layers_a, layers_b, dtype=torch.float64)
        self.self_a = torch.zeros(layers_a, dtype=torch.float64)
        self.self_b = torch.zeros(layers_b, dtype=torch.float64)
        self.rows = self.skipped = 0

    def update(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
        """Add one minibatch: per layer the rows (rows × width) of the same inputs; widths may differ."""
        if len(a) != self.self_a.numel() or len(b) != self.self_b.numel():
            raise DataError(
                f"{len(a)} and {len(b)} layers do not fit {self.self_a.numel()} × {self.self_b.numel()}",
                where="CKA",
                fix="give every layer in every batch",
            )
        counts = {layer.shape[0] for layer in (*a, *b)}
        if len(counts) != 1:
            raise DataError(
                f"layers have {sorted(counts)} rows", where="CKA", fix="give the same inputs' rows"
            )
        count = counts.pop()
        if count < 4:
            self.skipped += count
            return
        left, right = (torch.stack([_u_centred(layer).flatten() for layer in side]) for side in (a, b))
        weight = 1.0 / (count - 3)  # n · 1/(n (n − 3))
        sums = [left @ right.T, left.square().sum(1), right.square().sum(1)]
        if not all(math.isfinite(float(part.sum())) for part in sums):
            raise NumericalError(
                "the activations hold NaN or Inf", where="CKA", fix="run the models in float32"
            )
        for total, part in zip((self.cross, self.self_a, self.self_b), sums, strict=True):
            total.add_(part.cpu(), alpha=weight)
        self.rows += count

    def __iadd__(self, other: "CkaAccumulator") -> "CkaAccumulator":
        self.cross += other.cross
        self.self_a += other.self_a
        self.self_b += other.self_b
        self.rows += other.rows
        self.skipped += other.skipped
        return self

    def matrix(self) -> Float[Tensor, "layers_a layers_b"]:
        """Return CKA of every pair of layers; 0 where a layer is constant. May fall slightly below 0."""
        scale = torch.outer(self.self_a.clamp_min(0.0), self.self_b.clamp_min(0.0)).sqrt()
        return torch.where(scale > 0, self.cross / scale.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def _u_centred(rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows rows"]:
    """Return K̃ of the rows' Gram matrix in float64, its products in the rows' own precision.

    K̃_ij = K_ij − r_i/(n−2) − r_j/(n−2) + s/((n−1)(n−2)) off the diagonal and 0 on it, where r and s are the
    row sums and the sum of K without its diagonal.
    """
    count = rows.shape[0]
    rows = rows.detach()
    # HSIC does not change when the mean is removed first, and float32 products then keep their digits
    rows = (rows - rows.mean(0, dtype=torch.float64)).to(torch.promote_types(rows.dtype, torch.float32))
    gram = (rows @ rows.T).double().fill_diagonal_(0.0)
    sums = gram.sum(1)
    shift = sums / (count - 2) - sums.sum() / (2 * (count - 1) * (count - 2))
    return gram.sub_(shift[:, None]).sub_(shift).fill_diagonal_(0.0)
