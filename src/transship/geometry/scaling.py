"""Sinkhorn's iterations: kernel products where float range allows, the log domain elsewhere."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import DataError

Potentials = tuple[Float[Tensor, " n"], Float[Tensor, " m"]]


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
