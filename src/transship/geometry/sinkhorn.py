"""Entropic optimal transport between two point sets, and its debiased divergence.

OT_ε(a, b) = min_P ⟨P, C⟩ + ε KL(P | a bᵀ) over plans P with marginals a and b. At the optimum
P_ij = a_i b_j exp((f_i + g_j − C_ij)/ε), OT_ε = ⟨f, a⟩ + ⟨g, b⟩, and its derivative in C is P (the envelope
theorem): the gradient needs the last plan and no iteration is stored.
"""

import functools
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

Potentials = tuple[Float[Tensor, " n"], Float[Tensor, " m"]]


@dataclass(frozen=True, eq=False)
class Transport:
    """A solution of entropic transport.

    Attributes:
        value: OT_ε, differentiable in the points (envelope gradient).
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
        return attach(spent, self.matrix, self.plan)


def sinkhorn(
    x: Float[Tensor, "n width"],
    y: Float[Tensor, "m width"],
    *,
    epsilon: float = 0.05,
    cost: Cost = "squared_euclidean",
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Transport:
    """Return the entropic transport between the rows of `x` and of `y`, all rows of a set of one weight.

    Args:
        x: points of the first set.
        y: points of the second set.
        epsilon: ε, as a share of the mean cost (treated as a constant by the gradient).
        cost: `squared_euclidean`, `euclidean` or `cosine`.
        iterations: the most that are run.
        tolerance: stop when the marginals are off by at most this in sum (0: run all iterations).
    """
    return sinkhorn_cost(cost_matrix(x, y, cost), epsilon=epsilon, iterations=iterations, tolerance=tolerance)


def sinkhorn_cost(
    matrix: Float[Tensor, "n m"],
    *,
    epsilon: float = 0.05,
    relative: bool = True,
    iterations: int = 200,
    tolerance: float = 1e-6,
    start: Potentials | None = None,
    symmetric: bool = False,
) -> Transport:
    """Return the entropic transport of a given cost matrix; arguments as in `sinkhorn`.

    Args:
        matrix: C.
        epsilon: ε.
        relative: False makes `epsilon` absolute.
        iterations: the most that are run.
        tolerance: when to stop.
        start: potentials of a near problem.
        symmetric: the matrix is symmetric: f = g, and averaged updates converge faster.
    """
    n, m = matrix.shape
    if not n or not m:
        raise DataError("there are no points", where="sinkhorn", fix="give at least one")
    a, b = (matrix.new_full((size,), 1.0 / size) for size in (n, m))
    absolute = absolute_epsilon(matrix, epsilon) if relative else float(epsilon)
    if not absolute > 0:
        raise OptionError(f"ε is {epsilon}", where="sinkhorn", fix="choose a number above 0")
    solver = Solver(matrix.detach(), a, b, absolute, iterations, tolerance, symmetric)
    with torch.no_grad():
        plan = solver.run(start)
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
        attach(value, matrix, plan), matrix, plan, (f, g), absolute, solver.done, solver.log_steps, error
    )


def sinkhorn_divergence(
    x: Float[Tensor, "n width"],
    y: Float[Tensor, "m width"],
    *,
    epsilon: float = 0.05,
    cost: Cost = "squared_euclidean",
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Float[Tensor, ""]:
    """Return S_ε = OT_ε(x, y) − ½ OT_ε(x, x) − ½ OT_ε(y, y), one absolute ε in all terms; see `sinkhorn`.

    It is zero for equal sets and never below zero at convergence.

    ε is taken from the mean cost of the cross term alone: with an ε of its own each self term would scale
    with its own spread, and the bias would not cancel.
    """
    cross_cost = cost_matrix(x, y, cost)
    absolute = absolute_epsilon(cross_cost, epsilon)
    solve = functools.partial(
        sinkhorn_cost, epsilon=absolute, relative=False, iterations=iterations, tolerance=tolerance
    )
    self_x = solve(cost_matrix(x, x, cost), symmetric=True)
    self_y = solve(cost_matrix(y, y, cost), symmetric=True)
    # for equal sets these are the cross term's potentials, and for near sets nearly so
    cross = solve(cross_cost, start=(self_x.potentials[0], self_y.potentials[1]))
    return cross.value - 0.5 * self_x.value - 0.5 * self_y.value


def absolute_epsilon(matrix: Float[Tensor, "n m"], share: float) -> float:
    """Return ε = share × mean cost; 1 when all costs are zero, where every ε gives the same plan."""
    if not share > 0:
        raise OptionError(f"ε is {share}", where="sinkhorn", fix="choose a number above 0")
    # by rows first: no copy of the matrix in float64
    mean = float(matrix.detach().sum(1).double().sum()) / matrix.numel() if matrix.numel() else 0.0
    if not math.isfinite(mean):
        raise NumericalError("the costs hold NaN or Inf", where="sinkhorn", fix="check the points")
    return share * mean if mean > 0 else 1.0


class _Envelope(torch.autograd.Function):
    """A value whose derivative in the cost is known: the plan."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, matrix: Tensor, plan: Tensor) -> Tensor:
        ctx.save_for_backward(plan)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (plan,) = ctx.saved_tensors
        return None, plan if float(upstream) == 1.0 else upstream * plan, None


class Solver:
    """The iteration g ← −ε log Σ_i a_i e^((f_i − C_ij)/ε), then f likewise, in whichever domain is cheaper.

    A step in the log domain leaves K_ij = b_j e^((f_i + g_j − C_ij)/ε), whose rows sum to 1, in `work`: its
    entries are in range. From there f + ε log u and g + ε log v are reached by two matrix-vector products per
    step. When u or v drift out of range (small ε, or far from the start), they are absorbed into f and g and
    the next step is one of the log domain. Entries of K below float range are mass that no plan will see.
    """

    def __init__(
        self,
        cost: Tensor,
        a: Tensor,
        b: Tensor,
        epsilon: float,
        iterations: int,
        tolerance: float,
        symmetric: bool,
    ) -> None:
        self.cost, self.a, self.b, self.epsilon = cost, a, b, epsilon
        self.log_a, self.log_b = a.log(), b.log()
        self.iterations, self.tolerance, self.symmetric = iterations, tolerance, symmetric
        double = cost.dtype == torch.float64
        # e^−80 and e^−600 are well inside the normal numbers of either type: no denormal slows the products
        self.floor, self.drift = (-600.0, math.exp(100.0)) if double else (-80.0, math.exp(20.0))
        self.done = self.log_steps = 0
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.work = torch.empty_like(cost)

    def run(self, start: Potentials | None) -> Tensor:
        """Iterate, and return the plan."""
        if start is not None:
            self.f, self.g = (self._started(*pair) for pair in zip(start, (self.f, self.g), strict=True))
        while self.done < self.iterations:
            error = self._log_step()
            if 0 < self.tolerance >= error:
                break
            if self._kernel_steps():
                return self.work
        exponent = torch.add(self.f[:, None], self.g, out=self.work).sub_(self.cost).div_(self.epsilon)
        return exponent.exp_().mul_(self.a[:, None]).mul_(self.b)

    def _started(self, given: Tensor, own: Tensor) -> Tensor:
        if given.shape != own.shape:
            raise DataError(
                f"start potentials have {given.shape[0]} entries for {own.shape[0]} points",
                where="sinkhorn start",
                fix="start from a problem of the same size",
            )
        return given.detach().to(own)

    def _log_step(self) -> float:
        """Take one step; return how far the column marginal of the plan before it was off."""
        g = self._soft_min(self.f, self.log_a, 0)
        off = float(((self.g - g) / self.epsilon).expm1_().abs_() @ self.b) if self.done else math.inf
        self.g = (self.f + g) / 2 if self.symmetric else g
        soft = self._soft_min(self.g, self.log_b, 1)
        # the symmetric step keeps f = g; its kernel is then scaled by u = e^((f − soft)/ε) from the start
        self.f = self.g if self.symmetric else soft
        self.scaling = ((self.f - soft) / self.epsilon).exp_()
        self.done += 1
        self.log_steps += 1
        return off if math.isfinite(off) else math.inf

    def _soft_min(self, potential: Tensor, log_weights: Tensor, axis: int) -> Tensor:
        """Return −ε log Σ w exp((potential − C)/ε) over `axis`; its softmax over `axis` stays in `work`."""
        shifted = potential / self.epsilon + log_weights
        shifted = shifted[:, None] if axis == 0 else shifted
        exponent = torch.sub(shifted, self.cost, alpha=1.0 / self.epsilon, out=self.work)
        largest = exponent.amax(axis, keepdim=True)
        sums = exponent.sub_(largest).clamp_min_(self.floor).exp_().sum(axis, keepdim=True)
        if axis == 1:
            exponent.div_(sums)
        return (largest + sums.log()).mul_(-self.epsilon).squeeze(axis)

    def _kernel_steps(self) -> bool:
        """Run products to the end (True, the plan in `work`) or until the scalings leave their range."""
        kernel, b = self.work, self.b
        u, v = self.scaling, torch.ones_like(self.g)
        base_f, base_g = self.f - self.epsilon * u.log(), self.g
        ended = self._in_range(u)
        while ended and self.done < self.iterations:
            sums = kernel.T @ (self.a * u)
            if self.tolerance > 0 and float((v * sums).sub_(b).abs_().sum()) <= self.tolerance:
                break
            next_v = b / sums
            if self.symmetric:
                # f = g: both move to the mean of the old f and the new g
                target = (base_f + base_g + self.epsilon * (u.log() + next_v.log())) / 2
                next_u, next_v = ((target - base) / self.epsilon for base in (base_f, base_g))
                next_u, next_v = next_u.exp_(), next_v.exp_()
            else:
                next_u = 1.0 / (kernel @ next_v)
            ended = self._in_range(next_u) and self._in_range(next_v)
            if ended:
                u, v = next_u, next_v
                self.done += 1
        self.f, self.g = base_f + self.epsilon * u.log(), base_g + self.epsilon * v.log()
        if ended:
            kernel.mul_((self.a * u)[:, None]).mul_(v)
        return ended

    def _in_range(self, scaling: Tensor) -> bool:
        low, high = torch.aminmax(scaling)
        return float(low) > 1.0 / self.drift and float(high) < self.drift  # False for NaN


MOST_ASSIGNED, MOST_VARIABLES = 5000, 1_000_000


def wasserstein_exact(x: Float[Tensor, "n width"], y: Float[Tensor, "m width"]) -> Float[Tensor, ""]:
    """Return W₁ = min_P Σ P_ij ‖x_i − y_j‖, all rows of a set of one weight.

    The gradient holds P fixed. Equal sizes are an assignment (`scipy.optimize.linear_sum_assignment`);
    others are a linear programme (`scipy.optimize.linprog`, HiGHS).
    """
    matrix = cost_matrix(x.double(), y.double(), "euclidean")
    n, m = matrix.shape
    costs = matrix.detach().cpu().numpy()
    if not costs.size:
        raise DataError("there are no points", where="wasserstein_exact", fix="give at least one")
    if not np.isfinite(costs).all():
        raise NumericalError("the points hold NaN or Inf", where="wasserstein_exact", fix="check them")
    if n == m:
        from scipy.optimize import linear_sum_assignment  # here: SciPy's solvers are slow to import

        _check_size(n, MOST_ASSIGNED, "points")
        rows, columns = linear_sum_assignment(costs)
        plan = np.zeros((n, m))
        plan[rows, columns] = 1.0 / n
    else:
        _check_size(n * m, MOST_VARIABLES, "pairs of points")
        plan = _programme(costs)
    return (torch.from_numpy(plan).to(matrix) * matrix).sum().to(x.dtype)


def _programme(costs: np.ndarray) -> np.ndarray:
    import scipy.optimize
    import scipy.sparse

    n, m = costs.shape
    rows = scipy.sparse.kron(scipy.sparse.eye(n), np.ones((1, m)))
    columns = scipy.sparse.kron(np.ones((1, n)), scipy.sparse.eye(m))
    # the marginals must agree to the last digit, or the programme has no solution
    a, b = np.full(n, 1 / n), np.full(m, 1 / m)
    right = np.concatenate([a / a.sum(), b / b.sum()])
    equalities = scipy.sparse.vstack([rows, columns]).tocsr()[:-1]
    solution = scipy.optimize.linprog(costs.ravel(), A_eq=equalities, b_eq=right[:-1], method="highs")  # type: ignore[call-overload]
    if solution.status != 0:
        raise NumericalError(
            f"no optimal plan: {solution.message}", where="wasserstein_exact", fix="check the points"
        )
    return np.asarray(solution.x).reshape(n, m).clip(min=0.0)


def _check_size(size: int, most: int, what: str) -> None:
    if size > most:
        raise OptionError(
            f"{size} {what} are too many for an exact solution (at most {most})",
            where="wasserstein_exact",
            fix="use sinkhorn, or draw fewer points",
        )
