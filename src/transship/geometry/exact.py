"""Exact Wasserstein distances between small point sets, through SciPy's solvers."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import NumericalError, OptionError
from transship.geometry.costs import cost_matrix
from transship.geometry.sinkhorn import marginal

MOST_ASSIGNED, MOST_VARIABLES = 5000, 1_000_000


@dataclass(frozen=True, eq=False)
class ExactTransport:
    """An unregularised optimal plan.

    Attributes:
        value: W_p, differentiable in the points with the plan held fixed.
        plan: the optimal plan.
    """

    value: Float[Tensor, ""]
    plan: Float[Tensor, "n m"]


def wasserstein_exact(
    x: Float[Tensor, "n width"],
    y: Float[Tensor, "m width"],
    *,
    order: int = 1,
    weights_x: Float[Tensor, " n"] | None = None,
    weights_y: Float[Tensor, " m"] | None = None,
) -> ExactTransport:
    """Return W_p = (min_P Σ P_ij ‖x_i − y_j‖^p)^(1/p) for p = 1 or 2.

    Equal sizes with uniform weights are an assignment (`scipy.optimize.linear_sum_assignment`); other
    problems are a linear programme (`scipy.optimize.linprog`, HiGHS).
    """
    if order not in (1, 2):
        raise OptionError(f"order {order}", where="wasserstein_exact", fix="choose 1 or 2")
    matrix = cost_matrix(x.double(), y.double(), "euclidean" if order == 1 else "squared_euclidean")
    n, m = matrix.shape
    a, b = marginal(weights_x, n, matrix, "weights_x"), marginal(weights_y, m, matrix, "weights_y")
    costs = matrix.detach().cpu().numpy()
    if not np.isfinite(costs).all():
        raise NumericalError("the points hold NaN or Inf", where="wasserstein_exact", fix="check them")
    if n == m and weights_x is None and weights_y is None:
        from scipy.optimize import linear_sum_assignment  # here: SciPy's solvers are slow to import

        _check_size(n, MOST_ASSIGNED, "points")
        rows, columns = linear_sum_assignment(costs)
        plan = np.zeros((n, m))
        plan[rows, columns] = 1.0 / n
    else:
        _check_size(n * m, MOST_VARIABLES, "pairs of points")
        plan = _programme(costs, a.detach().cpu().numpy(), b.detach().cpu().numpy())
    kept = torch.from_numpy(plan).to(matrix)
    total = (kept * matrix).sum()
    value = total if order == 1 else torch.where(total > 0, total, 0.0 * total).clamp_min(1e-300).sqrt()
    return ExactTransport(value.to(x.dtype), kept.to(x.dtype))


def _programme(costs: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    import scipy.optimize
    import scipy.sparse

    n, m = costs.shape
    rows = scipy.sparse.kron(scipy.sparse.eye(n), np.ones((1, m)))
    columns = scipy.sparse.kron(np.ones((1, n)), scipy.sparse.eye(m))
    # the marginals must agree to the last digit, or the programme has no solution
    right = np.concatenate([a / a.sum(), b / b.sum()])
    equalities = scipy.sparse.vstack([rows, columns]).tocsr()[:-1]
    found = scipy.optimize.linprog(costs.ravel(), A_eq=equalities, b_eq=right[:-1], method="highs")  # type: ignore[call-overload]
    if found.status != 0:
        raise NumericalError(
            f"no optimal plan: {found.message}", where="wasserstein_exact", fix="check the weights"
        )
    return np.asarray(found.x).reshape(n, m).clip(min=0.0)


def _check_size(size: int, most: int, what: str) -> None:
    if size > most:
        raise OptionError(
            f"{size} {what} are too many for an exact solution (at most {most})",
            where="wasserstein_exact",
            fix="use sinkhorn, or draw fewer points",
        )
