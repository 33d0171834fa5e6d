"""Singular vectors of several updates, made orthonormal together."""

import torch
from jaxtyping import Float
from torch import Tensor


def joined(matrices: list[Float[Tensor, "m n"]], scale: float) -> Float[Tensor, "m n"]:
    """Return λ U diag(S) Vᵀ in float64, with the bases that `singular_bases` makes of all matrices."""
    u, s, v = singular_bases(matrices)
    return (scale * u * s) @ v.T


def singular_bases(
    matrices: list[Float[Tensor, "m n"]],
) -> tuple[Float[Tensor, "m rank"], Float[Tensor, " rank"], Float[Tensor, "n rank"]]:
    """Return orthonormal U and V and the singular values, those of all matrices side by side; float64."""
    rank = min(matrices[0].shape) // len(matrices)
    factors = [torch.linalg.svd(matrix.double(), full_matrices=False) for matrix in matrices]
    u = torch.cat([u[:, :rank] for u, _, _ in factors], 1)
    s = torch.cat([s[:rank] for _, s, _ in factors])
    v = torch.cat([vt[:rank].T for _, _, vt in factors], 1)
    return _orthonormal(u), s, _orthonormal(v)


def _orthonormal(basis: Tensor) -> Tensor:
    p, _, qt = torch.linalg.svd(basis, full_matrices=False)
    polar: Tensor = p @ qt
    return polar
