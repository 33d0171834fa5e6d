"""Ridge regression between two spaces: λ given, by generalised cross-validation, or by exact leave-one-out.

W = (S_xx + λI)⁻¹ S_xy. With S_xx = V diag(E) Vᵀ and B = Vᵀ S_xy every λ costs one division: W = V (B / (E +
λ)).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import DataError, NumericalError, OptionError, TransshipWarning
from transship.geometry.maps import LinearMap
from transship.geometry.moments import Moments
from transship.geometry.spectral import Spectrum, groups, prints, spectrum

# λ / mean variance of the source
STRENGTHS: tuple[float, ...] = tuple(10.0 ** (power / 4) for power in range(-24, 9))
# A mean squared error of this share of the variance is rounding: the fit is exact, and any small λ will do.
EXACT = 1e-8
# The score still falls at the end of the grid where it is below this share of the score a decade within.
STILL_FALLING, DECADE = 0.9, 4
# The strength where a single row leaves nothing to choose by.
ONE_ROW = 1.0


def ridge(
    moments: Moments,
    strength: float | None = None,
    *,
    relative: bool = True,
    centre: bool = True,
    strengths: Sequence[float] = STRENGTHS,
) -> LinearMap:
    """Return the ridge map of λ = strength × mean eigenvalue of S_xx (× 1 if not `relative`).

    Without a strength, the one of `strengths` with the least GCV is taken:
    GCV(λ) = RSS / (1 − df/r)², RSS = tr S_yy − Σ_j ‖B_j‖² (E_j + 2λ)/(E_j + λ)², df = Σ E/(E + λ) (+ 1 if
    centred), with r different rows. A row that occurs twice is interpolated as one: counted as two it would
    leave a degree of freedom where there is no residual, and the score of an interpolation would be zero.

    Args:
        moments: `aa` and `ab`.
        strength: λ, or None for GCV.
        relative: whether strengths are shares of the mean eigenvalue, and so mean the same at every site.
        centre: whether an intercept is fitted.
        strengths: the grid for GCV.
    """
    if moments.count <= 0:
        raise NumericalError("no rows were counted", where=moments.name, fix="collect at least one input")
    used = moments.centred() if centre else moments
    eigen = spectrum(used.part("aa"), precision=moments.precision, where=moments.name)
    unit = float(eigen.values.mean()) if relative else 1.0
    projected = eigen.vectors.T @ used.part("ab")
    details: dict[str, float] = {}
    if strength is None:
        scores = gcv(used, strengths, unit=unit, centre=centre, _found=(eigen, projected))
        best = int(scores.argmin())
        strength, details["gcv"] = float(strengths[best]), float(scores[best])
        details |= _at_the_end(scores, strengths)
        if 2 * eigen.rank > used.distinct and _still_falls(scores, strengths, float(used.square_b.sum())):
            warnings.warn(
                f"{moments.name}: the best λ is the least of {len(strengths)}, which nearly interpolates the "
                "rows; give more rows, or a strength",
                TransshipWarning,
                stacklevel=2,
            )
    _check_strength(strength, moments.name)
    penalty = strength * unit
    details |= {"strength": strength, "lambda": penalty}
    matrix = eigen.vectors @ (projected * _shrunk_inverse(eigen, penalty)[:, None])
    means = (moments.sum_a / moments.count, moments.sum_b / moments.count) if centre else (None, None)
    return LinearMap(matrix, means[0], means[1], "ridge", eigen.rank, eigen.tolerance, details)


def gcv(
    centred: Moments,
    strengths: Sequence[float],
    *,
    unit: float = 1.0,
    centre: bool = True,
    _found: tuple[Spectrum, Tensor] | None = None,
) -> Float[Tensor, " strengths"]:
    """Return the GCV score of every λ = strength × unit, from Moments that are centred if they should be."""
    if _found is None:
        eigen = spectrum(centred.part("aa"), precision=centred.precision, where=centred.name)
        _found = eigen, eigen.vectors.T @ centred.part("ab")
    values, energies = _found[0].values, _found[1].square().sum(1)
    total, rows, scores = centred.square_b.sum(), centred.distinct, []
    for strength in strengths:
        penalty = strength * unit
        _check_strength(strength, centred.name)
        shrunk = _shrunk_inverse(_found[0], penalty)
        residual = (total - (energies * (values + 2 * penalty) * shrunk.square()).sum()).clamp_min(0.0)
        freedom = float((values * shrunk).sum()) + (1.0 if centre else 0.0)
        slack = 1.0 - freedom / rows
        # as many degrees of freedom as rows: the fit interpolates, and says nothing about other rows
        scores.append(residual / slack**2 if slack > 1e-9 else residual.new_tensor(torch.inf))
    result = torch.stack(scores)
    if not bool(torch.isfinite(result).any()):
        raise NumericalError(
            f"{rows:.0f} different rows leave no degree of freedom at any λ",
            where=centred.name,
            fix="collect more rows, or give a larger strength",
        )
    return result


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Ridge with λ by exact leave-one-out.

    Attributes:
        map: fitted on all rows with the best λ.
        penalty: that λ.
        errors: the mean squared leave-one-out error of every λ.
        predictions: for each row, the prediction of the map fitted on the other rows at the best λ. Rows that
            are equal to it are left out with it: they would tell their own answer.
    """

    map: LinearMap
    penalty: float
    errors: Float[Tensor, " penalties"]
    predictions: Float[Tensor, "rows target"]


def ridge_loo(
    x: Float[Tensor, "rows source"],
    y: Float[Tensor, "rows target"],
    penalties: Sequence[float] | None = None,
    *,
    centre: bool = True,
) -> LeaveOneOut:
    """Return ridge with the λ of least exact leave-one-out error, without refitting.

    With Z = X V and leverages h_i = 1/n + Σ_j Z_ij² / (E_j + λ) (without 1/n if not centred), the error at a
    row left out is e_i / (1 − h_i), e = y − ŷ. Equal rows, m of them, are left out together: e_i + h_i Σ e /
    (1 − m h_i) (scikit-learn leaves out one of them, which the others then answer for). Works in float64 and
    through the narrower of the two Gram matrices; between the λ of a grid the errors of float32 rows are
    compared in float32.

    The `penalties` are absolute, by default `STRENGTHS` × the mean eigenvalue of XᵀX. With `centre` an
    intercept is fitted, and left out with its row.
    """
    if len(x) < 2:
        raise DataError(f"{len(x)} rows cannot leave one out", where="ridge_loo", fix="give two or more")
    single = x.dtype == y.dtype == torch.float32
    x, y = x.detach().double(), y.detach().double()
    twins = groups(prints(x)).to(x.device)
    mean_x, mean_y = x.mean(0), y.mean(0)
    if centre:
        x, y = x - mean_x, y - mean_y
    values, scores, vectors, eigen = _principal(x)
    unit = float(values.sum()) / x.shape[1]
    grid = [strength * unit for strength in STRENGTHS] if penalties is None else list(penalties)
    projected = scores.T @ y

    def left_out(penalty: float, scores: Tensor, projected: Tensor, y: Tensor) -> Tensor:
        shrunk = 1.0 / (values + penalty)
        leverage = squares @ shrunk + (1.0 / len(x) if centre else 0.0)
        fitted = scores @ (shrunk[:, None] * projected).to(scores.dtype)
        return _left_out(y - fitted, leverage, twins)

    for penalty in grid:
        _check_strength(penalty, "ridge_loo")
    squares, single = scores.square(), single and len(grid) > 1
    coarse = (scores.float(), projected, y.float()) if single else (scores, projected, y)
    errors = torch.stack([left_out(penalty, *coarse).square().mean().double() for penalty in grid])
    best = grid[int(errors.argmin())]
    matrix = vectors @ (projected / (values + best)[:, None])
    means = (mean_x, mean_y) if centre else (None, None)
    details = {"lambda": best, "strength": best / unit if unit > 0 else 0.0, "loo": float(errors.min())}
    details |= _at_the_end(errors, grid)
    fitted = LinearMap(matrix, means[0], means[1], "ridge", eigen.rank, eigen.tolerance, details)
    predictions = y - left_out(best, scores, projected, y) + (mean_y if centre else 0.0)
    return LeaveOneOut(fitted, best, errors, predictions)


def ridge_of(
    x: Float[Tensor, "rows source"],
    y: Float[Tensor, "rows target"],
    strength: float | None = None,
    *,
    centre: bool = True,
    name: str = "rows",
) -> LinearMap:
    """Return the ridge map of rows in memory: λ by exact leave-one-out, or strength × mean eigenvalue."""
    if strength is None and len(x) > 1:
        return ridge_loo(x, y, centre=centre).map
    moments = Moments.of(x.double(), y.double(), parts=("aa", "ab"), name=name)
    return ridge(moments, ONE_ROW if strength is None else strength, centre=centre)


def _left_out(residual: Tensor, leverage: Tensor, twins: Tensor) -> Tensor:
    """Return the errors at rows that are left out with all rows equal to them."""
    different = int(twins.max()) + 1
    if different == len(twins):
        return residual / (1.0 - leverage.clamp_max(1.0 - 1e-12)).to(residual.dtype)[:, None]
    sums = residual.new_zeros(different, residual.shape[1]).index_add(0, twins, residual)
    free = (1.0 - leverage.new_zeros(different).index_add(0, twins, leverage)).clamp_min(1e-12)
    return residual + (leverage / free[twins]).to(residual.dtype)[:, None] * sums[twins]


def _at_the_end(scores: Tensor, strengths: Sequence[float]) -> dict[str, float]:
    """Return a detail where the best λ is the least (−1) or the largest (1) of the grid."""
    best = strengths[int(scores.argmin())]
    if len(strengths) < 2 or min(strengths) < best < max(strengths):
        return {}
    return {"end_of_grid": 1.0 if best == max(strengths) else -1.0}


def _still_falls(scores: Tensor, strengths: Sequence[float], variance: float) -> bool:
    """Say whether the least λ is the best, and the score falls towards it without the fit being exact.

    GCV trusts that rows differ: where some nearly agree, its score of an interpolation is too good. Exact
    leave-one-out needs no such doubt, and with many more rows than directions nothing interpolates.
    """
    ranked = scores[torch.tensor(strengths, dtype=torch.float64).argsort()]
    within = float(ranked[min(DECADE, len(ranked) - 1)])
    return not bool(ranked.argmin()) and EXACT * variance < float(ranked[0]) < STILL_FALLING * within


def _principal(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Spectrum]:
    """Return E, Z = X V and V on the observed directions of XᵀX."""
    if x.shape[0] >= x.shape[1]:
        eigen = spectrum(x.T @ x, where="ridge_loo")
        return eigen.kept, x @ eigen.basis, eigen.basis, eigen
    eigen = spectrum(x @ x.T, where="ridge_loo")
    roots = eigen.kept.sqrt()
    return eigen.kept, eigen.basis * roots, x.T @ (eigen.basis / roots), eigen


def _shrunk_inverse(found: Spectrum, penalty: float) -> Tensor:
    """Return 1/(E + λ), zero where λ = 0 meets an unobserved direction."""
    if penalty > 0:
        return 1.0 / (found.values + penalty)
    inverse = torch.zeros_like(found.values)
    inverse[found.values.numel() - found.rank :] = 1.0 / found.kept
    return inverse


def _check_strength(strength: float, where: str) -> None:
    if not strength >= 0:
        raise OptionError(f"λ is {strength}", where=where, fix="choose 0 or more")
