"""TSV-M on the merged vector and the one that arrives."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step


@dataclass(frozen=True, kw_only=True)
class Tsvm(ContinualMethod):
    """Join the leading singular vectors of both updates, made orthonormal, matrix by matrix.

    Gargiulo et al., "Task Singular Vectors": of each of T matrices the ⌊min(m, n)/T⌋ leading triplets stay;
    the stacked U and V are replaced by their polar factors, and τ = λ U diag(S) Vᵀ. Tensors that are no
    matrix are averaged. Continual: T = 2, on τ_m and τ_t.

    Attributes:
        scale: λ.
    """

    paper: ClassVar[str] = "Gargiulo et al., 2025"

    scale: float = 1.0

    def add(self, state: State, step: Step) -> State:
        """Return the joined vector."""
        return {
            "merged": {name: self._joined(old, step.update[name]) for name, old in state["merged"].items()}
        }

    def _joined(self, old: Tensor, new: Tensor) -> Tensor:
        if old.ndim != 2 or min(old.shape) < 2:
            return (old + new) / 2
        u, s, v = singular_bases([old, new])
        return ((self.scale * u * s) @ v.T).to(old.dtype)


def singular_bases(
    matrices: list[Float[Tensor, "m n"]],
) -> tuple[Float[Tensor, "m rank"], Float[Tensor, " rank"], Float[Tensor, "n rank"]]:
    """Return orthonormal U and V and the singular values, those of all matrices side by side; float64."""
    rank = min(matrices[0].shape) // len(matrices)
    found = [torch.linalg.svd(matrix.double(), full_matrices=False) for matrix in matrices]
    u = torch.cat([u[:, :rank] for u, _, _ in found], 1)
    s = torch.cat([s[:rank] for _, s, _ in found])
    v = torch.cat([vt[:rank].T for _, _, vt in found], 1)
    return _orthonormal(u), s, _orthonormal(v)


def _orthonormal(basis: Tensor) -> Tensor:
    p, _, qt = torch.linalg.svd(basis, full_matrices=False)
    made: Tensor = p @ qt
    return made
