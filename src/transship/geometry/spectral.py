"""Functions of a symmetric positive semi-definite matrix by its eigenvectors, and rows that are equal."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transship.errors import NumericalError, OptionError


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


Completion = Literal["zero", "identity", "svd"]
Route = Literal["auto", "svd", "gram"]

# The Gram route is wrong by about the square of this (see `_gram`).
GRAM_RESIDUAL = 1e-5
# The Gram route pays where the matrix is large or one side is longer: 0.73 to 0.85 of an SVD where it is
# 1.17 to 1.5 times as long. A square one is often too ill-conditioned, and the attempt costs an eighth more.
GRAM_ASPECT, GRAM_NARROW = 1.1, 2048


@dataclass(frozen=True)
class Polar:
    """T = U Vᵀ of cross = U Σ Vᵀ over the observed directions, and how they were found.

    Attributes:
        factor: T, with orthonormal rows (source ≤ target) or columns when the rank is full.
        rank: the number of singular values above `tolerance` times the largest.
        tolerance: the relative cut.
        singular_values: Σ in falling order, all of them.
        route: `svd` or `gram`.
    """

    factor: Float[Tensor, "source target"]
    rank: int
    tolerance: float
    singular_values: Float[Tensor, " least"]
    route: str

    @property
    def full_rank(self) -> bool:
        """Whether the data determines T altogether."""
        return self.rank == min(self.factor.shape)

    @property
    def conditioning(self) -> float:
        """σ_min / σ_1: the smaller it is, the more the least seen directions of T follow noise."""
        values = self.singular_values
        return float(values[-1] / values[0]) if values.numel() and values[0] > 0 else 0.0


def polar(
    cross: Float[Tensor, "source target"],
    *,
    complete: Completion = "zero",
    tolerance: float | None = None,
    route: Route = "auto",
    where: str = "polar factor",
) -> Polar:
    """Return the T of largest ⟨T, cross⟩ among partial isometries of the observed rank.

    With cross = Xᵀ Y = U Σ Vᵀ and source ≤ target, T = U Vᵀ minimises ‖X T − Y‖ subject to T Tᵀ = I; with
    source > target it minimises ‖X − Y Tᵀ‖ subject to Tᵀ T = I. It is unique exactly when the rank is full.

    Args:
        cross: the cross moment; float64 is used inside whatever its dtype, which T gets back.
        complete: what T does on directions whose singular value is at most `tolerance`·σ_1: `zero` (default)
            sends them to zero; `identity` adds the polar factor of the rectangular identity restricted to
            both null spaces, a rule that depends on nothing but the matrix; `svd` takes LAPACK's basis, as
            the paper does, which rounding and the thread count choose.
        tolerance: the relative cut; by default 4·max(source, target)·eps of float64.
        route: `svd`, `gram` (one eigenproblem of the narrow side; falls back to `svd` when it loses
            accuracy) or `auto`, which takes `gram` where it was measured to be cheaper.
        where: names the site in errors.
    """
    if complete not in ("zero", "identity", "svd"):
        raise OptionError(
            f"there is no completion '{complete}'", where=where, fix="choose zero, identity or svd"
        )
    matrix = cross.detach().double()
    if not bool(torch.isfinite(matrix.sum())):
        raise NumericalError("the cross moment holds NaN or Inf", where=where, fix="check the Moments")
    cut = default_tolerance(matrix) if tolerance is None else tolerance
    if route == "gram" or (route == "auto" and _gram_pays(matrix)):
        by_gram = _gram(matrix, cut)
        if by_gram is not None:
            factor, values = by_gram
            return Polar(factor.to(cross.dtype), values.numel(), cut, values, "gram")
    u, values, vt = torch.linalg.svd(matrix, full_matrices=False)
    rank = observed_rank(values, cut)
    kept = values.numel() if complete == "svd" else rank
    factor = u[:, :kept] @ vt[:kept]
    if complete == "identity" and rank < values.numel():
        factor = factor + _completion(factor)
    return Polar(factor.to(cross.dtype), rank, cut, values, "svd")


def default_tolerance(matrix: Float[Tensor, "rows columns"], precision: float | None = None) -> float:
    """Return the relative cut below which a singular value is rounding.

    Float64 throughout: 4·max(shape)·eps. A `precision` above that (float32 products: 1.2e-7) cuts at twice
    itself, since the products' errors do not grow with the shape but are that large from the start.
    """
    rounding = 4.0 * max(matrix.shape, default=1) * torch.finfo(torch.float64).eps
    return rounding if precision is None else max(rounding, 2.0 * precision)


def observed_rank(singular_values: Float[Tensor, " least"], tolerance: float) -> int:
    """Return how many of the falling singular values exceed `tolerance` times the first."""
    if singular_values.numel() == 0 or singular_values[0] <= 0:
        return 0
    return int((singular_values > tolerance * singular_values[0]).sum())


def _gram_pays(matrix: Tensor) -> bool:
    narrow, wide = sorted(matrix.shape)
    return narrow > 0 and (wide >= GRAM_ASPECT * narrow or narrow >= GRAM_NARROW)


def _gram(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
    """Return T and Σ by one eigenproblem of the narrow side, or None where that loses accuracy.

    CᵀC = V Λ Vᵀ alone is off by eps·(σ_1/σ_min)². So V is only a start: the columns of C V = B D (unit
    columns B, lengths D) are nearly orthogonal, BᵀB = I + F, and the polar factor of B D is B (I + X) with
    X_ij = −F_ij d_i / (d_i + d_j) up to terms of the order of F². F is known, so accuracy is known: above
    `GRAM_RESIDUAL` the decomposition is not trusted.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = tall.T @ tall
    if _hopeless(gram):
        return None
    squares, vectors = torch.linalg.eigh(gram)
    # squares below rounding say nothing about rank, and the user's cut must be far below what is seen
    if squares[-1] <= 0 or squares[0] <= max(10.0 * tolerance, 1e-7) ** 2 * squares[-1]:
        return None
    columns = tall @ vectors
    lengths = torch.linalg.vector_norm(columns, dim=0)
    columns /= lengths
    overlap = columns.T @ columns
    overlap.diagonal().sub_(1.0)
    if not float(torch.linalg.matrix_norm(overlap)) <= GRAM_RESIDUAL:
        return None
    correction = overlap.mul_(-lengths[:, None] / (lengths[:, None] + lengths))
    factor = torch.addmm(columns, columns, correction) @ vectors.T
    return (factor if tall is matrix else factor.T), lengths.sort(descending=True).values


def _hopeless(gram: Tensor) -> bool:
    """Tell from a Cholesky factor, at a tenth of the eigenproblem's cost, that F would be too large.

    F grows as eps·(σ_1/σ_min)². A few steps of inverse iteration bound σ_min² from above.
    """
    lower, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return True
    probe = torch.ones(gram.shape[0], 1, dtype=gram.dtype, device=gram.device)
    least = math.inf
    for _ in range(4):
        solved = torch.cholesky_solve(probe / probe.norm(), lower)
        least, probe = 1.0 / float(solved.norm()), solved
    largest = float(torch.linalg.matrix_norm(gram)) / math.sqrt(gram.shape[0])  # a lower bound of σ_1²
    return torch.finfo(torch.float64).eps * largest > GRAM_RESIDUAL * least


def _completion(factor: Tensor) -> Tensor:
    """Return the fixed isometry between the null spaces of a partial isometry T.

    E is the rectangular identity; the polar factor of (I − T Tᵀ) E (I − Tᵀ T) depends on the null spaces and
    not on the bases that span them. Where even that is short of rank, canonical bases of what is left are
    paired.
    """
    rows, columns = factor.shape
    missing = min(rows, columns) - round(float(factor.square().sum()))
    reference = torch.eye(rows, columns, dtype=factor.dtype, device=factor.device)
    left = reference - factor @ (factor.T @ reference)
    u, values, vt = torch.linalg.svd(left - (left @ factor.T) @ factor, full_matrices=False)
    rank = int((values[:missing] > 1e-6).sum())  # absolute: E has only ones
    added: Tensor = u[:, :rank] @ vt[:rank]
    if rank < missing:
        whole = factor + added
        added = added + _canonical_basis(whole, missing - rank) @ _canonical_basis(whole.T, missing - rank).T
    return added


def _canonical_basis(isometry: Tensor, size: int) -> Tensor:
    """Return `size` orthonormal columns of I − T Tᵀ: at each step the axis that reaches farthest into it.

    Ties (to 1e-9) go to the first axis, so rounding does not choose.
    """
    left = torch.eye(isometry.shape[0], dtype=isometry.dtype, device=isometry.device) - isometry @ isometry.T
    columns = []
    for _ in range(size):
        reach = left.diagonal()
        first = int((reach > reach.max() - 1e-9).nonzero()[0])
        columns.append(left[:, first] / left[:, first].norm())
        left = left - torch.outer(columns[-1], columns[-1] @ left)
    return torch.stack(columns, 1)


PROJECTIONS = 2
NEAR, ROUNDING = 1e-5, 1e-6


def prints(rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows projections"]:
    """Return what a row is known again by: the same two projections wherever rows have this width."""
    drawn = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], PROJECTIONS, generator=drawn)
    return (rows @ directions.to(rows)).float().cpu()


def groups(marks: Float[Tensor, "rows projections"]) -> Int[Tensor, " rows"]:
    """Return the number of the group that each row belongs to, from 0; rows of one group are equal."""
    near = NEAR * marks.std(0, correction=0) + ROUNDING * marks.square().mean(0).sqrt()
    labels = torch.arange(len(marks))
    while True:
        before = labels
        for column in marks.T:
            # equal rows are neighbours in the order of one projection, but for a third row of chance between
            order = column.argsort(stable=True)
            apart = (marks[order].diff(dim=0).abs() > near).any(1)
            runs = torch.cat([apart.new_zeros(min(1, len(marks))), apart]).cumsum(0)
            least = labels.scatter_reduce(0, runs, labels[order], "amin", include_self=False)
            labels = labels.scatter(0, order, least[runs])
        labels = labels[labels]
        if torch.equal(labels, before):
            inverse: Tensor = torch.unique(labels, return_inverse=True)[1]
            return inverse


def distinct(marks: Float[Tensor, "rows projections"]) -> int:
    """Return how many different rows there are."""
    return int(groups(marks).max()) + 1 if len(marks) else 0
