"""Entropic optimal transport between two point sets, and its debiased divergence.

OT_ε(a, b) = min_P ⟨P, C⟩ + ε KL(P | a bᵀ) over plans P with marginals a and b. At the optimum
P_ij = a_i b_j exp((f_i + g_j − C_ij)/ε), OT_ε = ⟨f, a⟩ + ⟨g, b⟩, and its derivative in C is P (the envelope
theorem): the gradient needs the last plan and no iteration is stored.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry.costs import Cost, cost_matrix

Potentials = tuple[Float[Tensor, " n"], Float[Tensor, " m"]]
Domain = Literal["auto", "log"]


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
    solver = _Solver(matrix.detach(), a.detach(), b.detach(), absolute, iterations, tolerance, symmetric)
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
        matrix: Tensor, weights: tuple[Tensor | None, Tensor | None], old: Transport | None
    ) -> Transport:
        return sinkhorn_cost(
            matrix,
            epsilon=absolute,
            relative=False,
            weights_x=weights[0],
            weights_y=weights[1],
            iterations=iterations,
            tolerance=tolerance,
            start=None if old is None else old.potentials,
            annealing=annealing,
            domain=domain,
            symmetric=matrix is not cross_cost,
        )

    cross = solve(cross_cost, (weights_x, weights_y), None if start is None else start.cross)
    self_x = solve(cost_matrix(x, x, cost), (weights_x, weights_x), None if start is None else start.self_x)
    self_y = solve(cost_matrix(y, y, cost), (weights_y, weights_y), None if start is None else start.self_y)
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


class _Solver:
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
        empty = b == 0
        self.absent = empty.to(b) if bool(empty.any()) else None
        self.iterations, self.tolerance, self.symmetric = iterations, tolerance, symmetric
        double = cost.dtype == torch.float64
        # e^−80 and e^−600 are well inside the normal numbers of either type: no denormal slows the products
        self.floor, self.drift = (-600.0, math.exp(100.0)) if double else (-80.0, math.exp(20.0))
        self.done = self.log_steps = 0
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.work = torch.empty_like(cost)

    def run(self, start: Potentials | None, annealing: float | None, domain: Domain) -> Tensor:
        """Iterate, and return the plan."""
        if start is not None:
            self.f, self.g = (self._started(*pair) for pair in zip(start, (self.f, self.g), strict=True))
        if annealing is not None:
            self._anneal(annealing)
        while self.done < self.iterations:
            error = self._log_step(self.epsilon)
            if 0 < self.tolerance >= error:
                break
            if domain == "auto" and self._kernel_steps():
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

    def _anneal(self, factor: float) -> None:
        if not 0.0 < factor < 1.0:
            raise OptionError(f"annealing factor {factor}", where="sinkhorn", fix="choose between 0 and 1")
        epsilon = float(self.cost.max())
        while epsilon > self.epsilon and self.done < self.iterations - 1:
            self._log_step(epsilon)
            epsilon *= factor

    def _log_step(self, epsilon: float) -> float:
        """Take one step; return how far the column marginal of the plan before it was off."""
        g = self._soft_min(self.f, self.log_a, epsilon, 0)
        off = float(((self.g - g) / epsilon).expm1_().abs_() @ self.b) if self.done else math.inf
        self.g = (self.f + g) / 2 if self.symmetric else g
        soft = self._soft_min(self.g, self.log_b, epsilon, 1)
        # the symmetric step keeps f = g; its kernel is then scaled by u = e^((f − soft)/ε) from the start
        self.f = self.g if self.symmetric else soft
        self.scaling = ((self.f - soft) / epsilon).exp_()
        self.done += 1
        self.log_steps += 1
        return off if math.isfinite(off) else math.inf

    def _soft_min(self, potential: Tensor, log_weights: Tensor, epsilon: float, axis: int) -> Tensor:
        """Return −ε log Σ w exp((potential − C)/ε) over `axis`; its softmax over `axis` stays in `work`."""
        shifted = potential / epsilon + log_weights
        shifted = shifted[:, None] if axis == 0 else shifted
        exponent = torch.sub(shifted, self.cost, alpha=1.0 / epsilon, out=self.work)
        largest = exponent.amax(axis, keepdim=True)
        sums = exponent.sub_(largest).clamp_min_(self.floor).exp_().sum(axis, keepdim=True)
        if axis == 1:
            exponent.div_(sums)
        return (largest + sums.log()).mul_(-epsilon).squeeze(axis)

    def _kernel_steps(self) -> bool:
        """Run products to the end (True, the plan in `work`) or until the scalings leave their range."""
        kernel, b = self.work, self.b
        if self.absent is not None:  # columns without mass: 0/0 becomes 1/1, and the kernel keeps them out
            b = b + self.absent
        u, v = self.scaling, torch.ones_like(self.g)
        base_f, base_g = self.f - self.epsilon * u.log(), self.g
        ended = self._in_range(u)
        while ended and self.done < self.iterations:
            sums = kernel.T @ (self.a * u)
            if self.absent is not None:
                sums += self.absent
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
            kernel.mul_((self.a * u)[:, None]).mul_(v if self.absent is None else v * (1.0 - self.absent))
        return ended

    def _in_range(self, scaling: Tensor) -> bool:
        low, high = torch.aminmax(scaling)
        return float(low) > 1.0 / self.drift and float(high) < self.drift  # False for NaN
