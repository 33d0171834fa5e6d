"""Entropic optimal transport between two point sets, and its debiased divergence.

OT_ε(a, b) = min_P ⟨P, C⟩ + ε KL(P | a bᵀ) over plans P with marginals a and b. At the optimum
P_ij = a_i b_j exp((f_i + g_j − C_ij)/ε), OT_ε = ⟨f, a⟩ + ⟨g, b⟩, and its derivative in C is P (the envelope
theorem): the gradient needs the last plan and no iteration is stored.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry.costs import Cost, cost_matrix
from transship.geometry.scaling import Domain, Potentials, Solver


@dataclass(frozen=True, eq=False)
class Transport:
    """A solution of entropic transport.

    Attributes:
        value: OT_ε, differentiable in the points and weights (envelope gradient).
        matrix: C.
        plan: P.
        potentials: (f, g): give them as `start` to continue or to warm-start a near problem.
        epsilon: the absolute ε.
        iterations: how many were run.
        log_iterations: how many of them in the log domain (the others were kernel products).
        error: Σ_j |(Pᵀ1)_j − b_j| + Σ_i |(P1)_i − a_i|.
    """

    value: Float[Tensor, ""]
    matrix: Float[Tensor, "n m"]
    plan: Float[Tensor, "n m"]
    potentials: Potentials
    epsilon: float
    iterations: int
    log_iterations: int
    error: float

    @cached_property
    def cost(self) -> Float[Tensor, ""]:
        """⟨P, C⟩, differentiable in the points with P held fixed: the same gradient as `value`."""
        with torch.no_grad():
            spent = (self.plan * self.matrix).sum()
        attach = cast(Callable[..., Tensor], _Envelope.apply)
        return attach(spent, self.matrix, self.plan, None, None, None, None)


def sinkhorn(
    x: Float[Tensor, "n width"],
    y: Float[Tensor, "m width"],
    *,
    epsilon: float = 0.05,
    relative: bool = True,
    cost: Cost = "squared_euclidean",
    weights_x: Float[Tensor, " n"] | None = None,
    weights_y: Float[Tensor, " m"] | None = None,
    iterations: int = 200,
    tolerance: float = 1e-6,
    start: Potentials | None = None,
    annealing: float | None = None,
    domain: Domain = "auto",
) -> Transport:
    """Return the entropic transport between the rows of `x` and of `y`.

    Args:
        x: points of the first set.
        y: points of the second set.
        epsilon: ε, as a share of the mean cost (treated as a constant by the gradient).
        relative: False makes `epsilon` absolute.
        cost: `squared_euclidean`, `euclidean` or `cosine`.
        weights_x: the first marginal, uniform by default; sums to 1.
        weights_y: the second marginal.
        iterations: the most that are run, including those of the annealing.
        tolerance: stop when the marginals are off by at most this in sum (0: run all iterations).
        start: potentials of a near problem.
        annealing: a factor below 1 by which ε falls per iteration from the largest cost to its value.
        domain: `auto` runs kernel products wherever float range allows, `log` never.
    """
    matrix = cost_matrix(x, y, cost)
    return sinkhorn_cost(
        matrix,
        epsilon=epsilon,
        relative=relative,
        weights_x=weights_x,
        weights_y=weights_y,
        iterations=iterations,
        tolerance=tolerance,
        start=start,
        annealing=annealing,
        domain=domain,
    )


def sinkhorn_cost(
    matrix: Float[Tensor, "n m"],
    *,
    epsilon: float = 0.05,
    relative: bool = True,
    weights_x: Float[Tensor, " n"] | None = None,
    weights_y: Float[Tensor, " m"] | None = None,
    iterations: int = 200,
    tolerance: float = 1e-6,
    start: Potentials | None = None,
    annealing: float | None = None,
    domain: Domain = "auto",
    symmetric: bool = False,
) -> Transport:
    """Return the entropic transport of a given cost matrix; arguments as in `sinkhorn`.

    `symmetric` is for a symmetric matrix with equal weights, where f = g and averaged updates converge
    faster.
    """
    n, m = matrix.shape
    a, b = marginal(weights_x, n, matrix, "weights_x"), marginal(weights_y, m, matrix, "weights_y")
    absolute = absolute_epsilon(matrix, epsilon) if relative else float(epsilon)
    if not absolute > 0:
        raise OptionError(f"ε is {epsilon}", where="sinkhorn", fix="choose a number above 0")
    solver = Solver(matrix.detach(), a.detach(), b.detach(), absolute, iterations, tolerance, symmetric)
    with torch.no_grad():
        plan = solver.run(start, annealing, domain)
        f, g = solver.f, solver.g
        rows, columns = plan.sum(1), plan.sum(0)
        error = float((rows - a).abs().sum() + (columns - b).abs().sum())
        # the dual objective: second-order close to the optimum even before convergence
        value = f @ a + g @ b - absolute * (rows.sum() - 1.0)
    if not math.isfinite(float(value)):
        raise NumericalError(
            "transport is not finite", where="sinkhorn", fix="check the points for NaN or Inf"
        )
    attach = cast(Callable[..., Tensor], _Envelope.apply)
    return Transport(
        attach(value, matrix, plan, a, f - f.mean(), b, g - g.mean()),
        matrix,
        plan,
        (f, g),
        absolute,
        solver.done,
        solver.log_steps,
        error,
    )


@dataclass(frozen=True, eq=False)
class Divergence:
    """S_ε = OT_ε(x, y) − ½ OT_ε(x, x) − ½ OT_ε(y, y), one absolute ε in all three terms.

    Attributes:
        value: S_ε, differentiable; zero when the two weighted sets are equal and never below zero at
        convergence. cross: the first term.
        self_x: the second term, without its factor.
        self_y: the third term.
    """

    value: Float[Tensor, ""]
    cross: Transport
    self_x: Transport
    self_y: Transport


def sinkhorn_divergence(
    x: Float[Tensor, "n width"],
    y: Float[Tensor, "m width"],
    *,
    epsilon: float = 0.05,
    relative: bool = True,
    cost: Cost = "squared_euclidean",
    weights_x: Float[Tensor, " n"] | None = None,
    weights_y: Float[Tensor, " m"] | None = None,
    iterations: int = 200,
    tolerance: float = 1e-6,
    start: Divergence | None = None,
    annealing: float | None = None,
    domain: Domain = "auto",
) -> Divergence:
    """Return the debiased Sinkhorn divergence; arguments as in `sinkhorn`.

    A relative ε is taken from the mean cost of the cross term alone: with an ε of its own each self term
    would scale with its own spread, and the bias would not cancel.
    """
    cross_cost = cost_matrix(x, y, cost)
    absolute = absolute_epsilon(cross_cost, epsilon) if relative else float(epsilon)

    def solve(
        matrix: Tensor,
        weights: tuple[Tensor | None, Tensor | None],
        begin: Potentials | None,
        symmetric: bool,
    ) -> Transport:
        return sinkhorn_cost(
            matrix,
            epsilon=absolute,
            relative=False,
            weights_x=weights[0],
            weights_y=weights[1],
            iterations=iterations,
            tolerance=tolerance,
            start=begin,
            annealing=annealing,
            domain=domain,
            symmetric=symmetric,
        )

    before = (None, None) if start is None else (start.self_x.potentials, start.self_y.potentials)
    self_x = solve(cost_matrix(x, x, cost), (weights_x, weights_x), before[0], True)
    self_y = solve(cost_matrix(y, y, cost), (weights_y, weights_y), before[1], True)
    # for equal sets these are the cross term's potentials, and for near sets nearly so
    near = (self_x.potentials[0], self_y.potentials[1]) if start is None else start.cross.potentials
    cross = solve(cross_cost, (weights_x, weights_y), near, False)
    return Divergence(cross.value - 0.5 * self_x.value - 0.5 * self_y.value, cross, self_x, self_y)


def absolute_epsilon(matrix: Float[Tensor, "n m"], share: float) -> float:
    """Return ε = share × mean cost; 1 when all costs are zero, where every ε gives the same plan."""
    if not share > 0:
        raise OptionError(f"ε is {share}", where="sinkhorn", fix="choose a number above 0")
    # by rows first: no copy of the matrix in float64
    mean = float(matrix.detach().sum(1).double().sum()) / matrix.numel() if matrix.numel() else 0.0
    if not math.isfinite(mean):
        raise NumericalError("the costs hold NaN or Inf", where="sinkhorn", fix="check the points")
    return share * mean if mean > 0 else 1.0


def marginal(weights: Tensor | None, size: int, like: Tensor, where: str) -> Tensor:
    """Return checked weights of sum 1, uniform by default."""
    if size == 0:
        raise DataError("there are no points", where=where, fix="give at least one")
    if weights is None:
        return torch.full((size,), 1.0 / size, dtype=like.dtype, device=like.device)
    weights = weights.to(like)
    if (
        weights.shape != (size,)
        or bool((weights < 0).any())
        or abs(float(weights.detach().sum()) - 1.0) > 1e-4
    ):
        raise DataError(
            f"weights must be {size} numbers from 0 that sum to 1",
            where=where,
            fix="divide them by their sum",
        )
    return weights


class _Envelope(torch.autograd.Function):
    """A value whose derivatives in the cost and in the marginals are known: plan and potentials."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        matrix: Tensor,
        plan: Tensor,
        a: Tensor | None,
        f: Tensor | None,
        b: Tensor | None,
        g: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(plan, f, g)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        plan, f, g = ctx.saved_tensors
        need = ctx.needs_input_grad
        return (
            None,
            None if not need[1] else plan if float(upstream) == 1.0 else upstream * plan,
            None,
            upstream * f if need[3] else None,
            None,
            upstream * g if need[5] else None,
            None,
        )


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
    solution = scipy.optimize.linprog(costs.ravel(), A_eq=equalities, b_eq=right[:-1], method="highs")  # type: ignore[call-overload]
    if solution.status != 0:
        raise NumericalError(
            f"no optimal plan: {solution.message}", where="wasserstein_exact", fix="check the weights"
        )
    return np.asarray(solution.x).reshape(n, m).clip(min=0.0)


def _check_size(size: int, most: int, what: str) -> None:
    if size > most:
        raise OptionError(
            f"{size} {what} are too many for an exact solution (at most {most})",
            where="wasserstein_exact",
            fix="use sinkhorn, or draw fewer points",
        )
