"""Functions of a symmetric positive semi-definite matrix by its eigenvectors, cut at a stated tolerance."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import NumericalError


@dataclass(frozen=True)
class Spectrum:
    """S = V diag(E) Vᵀ with E rising, and how many of E stand above the cut.

    Attributes:
        values: E, with rounding below zero clipped.
        vectors: V.
        rank: the number of values above `tolerance` times the largest.
        tolerance: the relative cut on E.
    """

    values: Float[Tensor, " width"]
    vectors: Float[Tensor, "width width"]
    rank: int
    tolerance: float

    @property
    def kept(self) -> Float[Tensor, " rank"]:
        """The observed eigenvalues."""
        return self.values[self.values.numel() - self.rank :]

    @property
    def basis(self) -> Float[Tensor, "width rank"]:
        """The observed eigenvectors."""
        return self.vectors[:, self.values.numel() - self.rank :]

    def power(self, exponent: float) -> Float[Tensor, "width width"]:
        """Return S^exponent on the observed directions, zero outside them; −1 is the pseudo-inverse."""
        return (self.basis * self.kept.pow(exponent)) @ self.basis.T


def spectrum(
    matrix: Float[Tensor, "width width"],
    *,
    tolerance: float | None = None,
    precision: float | None = None,
    where: str = "second moment",
) -> Spectrum:
    """Return the spectrum of a symmetric positive semi-definite matrix, in float64.

    The default tolerance is 4·width·eps (float64), or twice the `precision` of the products when that is
    larger.
    """
    symmetric = (matrix + matrix.T).double() / 2
    if not bool(torch.isfinite(symmetric.sum())):
        raise NumericalError("the second moment holds NaN or Inf", where=where, fix="check the Moments")
    values, vectors = torch.linalg.eigh(symmetric)
    values = values.clamp_min(0.0)
    if tolerance is None:
        rounding = 4.0 * max(matrix.shape[0], 1) * torch.finfo(torch.float64).eps
        tolerance = rounding if precision is None else max(rounding, 2.0 * precision)
    rank = int((values > tolerance * values[-1]).sum()) if values.numel() and values[-1] > 0 else 0
    return Spectrum(values, vectors, rank, tolerance)
