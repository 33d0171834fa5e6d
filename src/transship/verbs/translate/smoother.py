"""Kernel smoothers with an unpenalised intercept: fit and exact leave-one-out from one bordered system.

[K + λI, 1; 1ᵀ, 0] [A; b] = [Y; 0]. With M = (K + λI)⁻¹ and s = 1ᵀM1 its inverse has the block
P = M − M 1 1ᵀ M / s, so A = P Y, b = 1ᵀ M Y / s, and the error at a row left out is A_i / P_ii.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transship.errors import NumericalError


def solve(kernel: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return A [anchors, target] and b [target] for one λ."""
    factor = _factor(kernel, penalty)
    ones = torch.ones(len(kernel), 1, dtype=kernel.dtype)
    both = torch.cholesky_solve(torch.hstack([y, ones]), factor)
    smooth, flat = both[:, :-1], both[:, -1:]
    bias = smooth.sum(0) / flat.sum()
    return smooth - flat * bias, bias


def left_out(kernel: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Return the leave-one-out predictions [anchors, target] for one λ: y_i − A_i / P_ii."""
    factor = _factor(kernel, penalty)
    ones = torch.ones(len(kernel), 1, dtype=kernel.dtype)
    inverse = torch.cholesky_inverse(factor)
    flat = inverse @ ones
    diagonal = inverse.diagonal()[:, None] - flat.square() / flat.sum()
    smooth = inverse @ y
    weights = smooth - flat * (smooth.sum(0) / flat.sum())
    return y - weights / diagonal


def _factor(kernel: Tensor, penalty: float) -> Tensor:
    loaded = kernel + penalty * torch.eye(len(kernel), dtype=kernel.dtype)
    factor, failed = torch.linalg.cholesky_ex(loaded)
    if int(failed):
        raise NumericalError(
            f"the kernel matrix of {len(kernel)} anchors is singular at λ = {penalty:g}",
            where="kernel",
            fix="raise alpha, or remove anchors that occur twice",
        )
    found: Tensor = factor
    return found
