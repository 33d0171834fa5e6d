"""Maps fitted from Moments: orthogonal Procrustes, least squares and canonical correlation.

Conventions: a is the source x (rows of X), b the target y (rows of Y); S_xx, S_xy, S_yy are the Moments'
parts `aa`, `ab`, `bb`, taken about the means where the map is centred.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import NumericalError, OptionError
from transship.geometry.maps import LinearMap
from transship.geometry.moments import Moments
from transship.geometry.spectral import Completion, Route, default_tolerance, polar, spectrum


def procrustes(
    moments: Moments,
    *,
    centre: bool = False,
    scale: bool = False,
    whiten: float = 0.0,
    complete: Completion = "zero",
    tolerance: float | None = None,
    route: Route = "auto",
) -> LinearMap:
    """Return the orthogonal map T = U Vᵀ, where S_xy = U Σ Vᵀ: Eqs. (5)–(7) of THESEUS.

    Args:
        moments: `ab`; `aa` too for `scale` onto a narrower or rank-deficient map; both sides for `whiten`.
        centre: take moments about the means; the map then moves the mean onto the mean.
        scale: multiply T by c = ⟨X T, Y⟩ / ‖X T‖², the least-squares factor.
        whiten: the power p ≤ ½ of T = polar(S_xx^−p S_xy S_yy^−p); ½ aligns canonical directions.
        complete: what T does where the data says nothing (`polar`).
        tolerance: the relative cut on singular values; by default the rounding of the Moments' products.
        route: how the polar factor is computed (`polar`).
    """
    used = _about_means(moments, centre)
    cross = used.part("ab")
    if not 0.0 <= whiten <= 0.5:
        raise OptionError(f"whitening power {whiten}", where=moments.name, fix="choose from 0 to 0.5")
    if whiten > 0.0:
        side_a = spectrum(used.part("aa"), precision=moments.precision, where=moments.name)
        side_b = spectrum(used.part("bb"), precision=moments.precision, where=moments.name)
        cross = side_a.power(-whiten) @ cross @ side_b.power(-whiten)
    cut = default_tolerance(cross, moments.precision) if tolerance is None else tolerance
    rotation = polar(cross, complete=complete, tolerance=cut, route=route, where=moments.name)
    factor = _scale(used, rotation.factor, rotation.full_rank) if scale else 1.0
    means = _means(moments) if centre else (None, None)
    details = {"scale": factor, "conditioning": rotation.conditioning}
    return LinearMap(rotation.factor * factor, means[0], means[1], "procrustes", rotation.rank, cut, details)


def linear(moments: Moments, *, tolerance: float | None = None) -> LinearMap:
    """Return the least-squares map W = S_xx⁺ S_xy without means: least norm where the data is silent."""
    return _least_squares(moments, moments, (None, None), "linear", tolerance)


def affine(moments: Moments, *, tolerance: float | None = None) -> LinearMap:
    """Return the least-squares map with an intercept: W = S_xx⁺ S_xy about the means."""
    return _least_squares(moments, moments.centred(), _means(moments), "affine", tolerance)


@dataclass(frozen=True, eq=False)
class Canonical:
    """Canonical correlation analysis: two maps into one shared space, and how far the sides agree there.

    Attributes:
        source: x → canonical variates (unit regularised variance per column).
        target: y → canonical variates.
        correlations: their correlations, falling.
    """

    source: LinearMap
    target: LinearMap
    correlations: Float[Tensor, " rank"]

    def weighted(self, power: float = 1.0) -> "Canonical":
        """Return both sides with column k multiplied by correlation_k^power, for search in their space."""
        weights = self.correlations.pow(power)
        return Canonical(_columns(self.source, weights), _columns(self.target, weights), self.correlations)


def cca(moments: Moments, *, regularise: float = 0.0, size: int | None = None) -> Canonical:
    """Return the canonical directions: the SVD of (S_xx + ρ_x I)^−½ S_xy (S_yy + ρ_y I)^−½.

    Args:
        moments: all three parts.
        regularise: ρ as a share of each side's mean variance; 0 is plain CCA on the observed directions.
        size: how many directions to keep (all that are observed by default).
    """
    used = moments.centred()
    roots = [_inverse_root(used.part(part), regularise, moments) for part in ("aa", "bb")]
    u, values, vt = torch.linalg.svd(roots[0] @ used.part("ab") @ roots[1], full_matrices=False)
    cut = default_tolerance(roots[0], moments.precision)
    rank = int((values > cut * values[0]).sum()) if values.numel() and values[0] > 0 else 0
    kept = rank if size is None else min(size, rank)
    scale = moments.count**0.5  # S = n · covariance: variates get unit variance, not unit sum of squares
    left, right = roots[0] @ u[:, :kept] * scale, roots[1] @ vt[:kept].T * scale
    signs = _column_signs(left)
    means = _means(moments)
    about = {"regularise": regularise}
    return Canonical(
        LinearMap(left * signs, means[0], None, "cca", kept, cut, about),
        LinearMap(right * signs, means[1], None, "cca", kept, cut, about),
        values[:kept],
    )


def _least_squares(
    moments: Moments,
    used: Moments,
    means: tuple[Tensor | None, Tensor | None],
    kind: str,
    tolerance: float | None,
) -> LinearMap:
    eigen = spectrum(used.part("aa"), tolerance=tolerance, precision=moments.precision, where=moments.name)
    matrix = eigen.power(-1.0) @ used.part("ab")
    return LinearMap(matrix, means[0], means[1], kind, eigen.rank, eigen.tolerance)


def _about_means(moments: Moments, centre: bool) -> Moments:
    if moments.count <= 0:
        raise NumericalError("no rows were counted", where=moments.name, fix="collect at least one input")
    return moments.centred() if centre else moments


def _means(moments: Moments) -> tuple[Tensor, Tensor]:
    return moments.sum_a / moments.count, moments.sum_b / moments.count


def _scale(used: Moments, factor: Tensor, full_rank: bool) -> float:
    """Return c = ⟨X T, Y⟩ / ‖X T‖²; the norm is tr(S_xx) whenever T Tᵀ = I, and needs `aa` otherwise."""
    keeps_norm = full_rank and factor.shape[0] <= factor.shape[1]
    moved = used.square_a.sum() if keeps_norm else (factor * (used.part("aa") @ factor)).sum()
    return float((factor * used.part("ab")).sum() / moved) if moved > 0 else 1.0


def _inverse_root(second: Tensor, regularise: float, moments: Moments) -> Tensor:
    if regularise < 0:
        raise OptionError(f"regularise is {regularise}", where=moments.name, fix="choose 0 or more")
    width = second.shape[0]
    loaded = second + regularise * second.diagonal().mean() * torch.eye(width).to(second)
    return spectrum(loaded, precision=moments.precision, where=moments.name).power(-0.5)


def _column_signs(matrix: Tensor) -> Tensor:
    """Return the signs that make each column's largest entry positive: an SVD leaves them open."""
    if matrix.shape[1] == 0:
        return matrix.new_ones(0)
    largest = matrix.gather(0, matrix.abs().argmax(0, keepdim=True))[0]
    return torch.where(largest < 0, -1.0, 1.0).to(matrix)


def _columns(side: LinearMap, weights: Tensor) -> LinearMap:
    matrix = side.matrix * weights
    return LinearMap(matrix, side.source_mean, None, side.kind, side.rank, side.tolerance, side.details)


# The paper names no cut-off; torch's default would decide the result when there are few rows.
PSEUDO_INVERSE_TOLERANCE = 1e-10


def tikhonov(
    inputs: Moments,
    outputs: Moments,
    update: Float[Tensor, "out_a in_a"],
    strength: float,
    *,
    per_side: bool = False,
) -> Float[Tensor, "out_b in_b"]:
    """Return the Tikhonov-regularised solution of the same problem.

    Exact (default): with C_BB,out = V r Vᵀ and C_BB,in = U s Uᵀ, the entries of Vᵀ R U are divided by r_i s_j
    + λ, R = C_BA,out τ_A C_AB,in and λ = strength · mean(r) · mean(s): the minimiser of the squared misfit +
    λ‖τ_B‖².
    `per_side`: each pseudo-inverse becomes (C_BB + λI)⁻¹, λ = strength · mean eigenvalue of that side. That
    is another problem, cheaper to reason about per side.
    """
    if not strength > 0:
        raise OptionError(f"strength is {strength}", where="tikhonov", fix="choose a number above 0")
    carried = _carried(inputs, outputs, update)
    left, right = (spectrum(side.part("bb"), where=side.name) for side in (outputs, inputs))
    if per_side:
        r, s = (side.values + strength * side.values.mean() for side in (left, right))
        divisor = torch.outer(r, s)
    else:
        divisor = torch.outer(left.values, right.values) + strength * left.values.mean() * right.values.mean()
    solved = (left.vectors.T @ carried @ right.vectors) / divisor
    return (left.vectors @ solved @ right.vectors.T).to(update.dtype)


def _carried(inputs: Moments, outputs: Moments, update: Tensor) -> Tensor:
    """R = C_BA,out τ_A C_AB,in."""
    if update.shape != (outputs.width_a, inputs.width_a):
        raise OptionError(
            f"an update of shape {tuple(update.shape)} does not fit Moments of "
            f"{outputs.width_a} outputs and {inputs.width_a} inputs",
            where=inputs.name,
            fix="give the weight as (out, in)",
        )
    return outputs.part("ab").T @ update.double() @ inputs.part("ab")
