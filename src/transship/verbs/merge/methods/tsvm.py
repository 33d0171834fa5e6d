"""TSV-M: the leading singular vectors of all updates, made orthonormal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.protocol import Arrival, ContinualMethod, RecipeMethod

if TYPE_CHECKING:
    from torch import Tensor

    from transship.verbs.merge.maths.states import State


@dataclass(frozen=True, kw_only=True)
class Tsvm(RecipeMethod, ContinualMethod):
    """Join the leading singular vectors of all updates, made orthonormal, matrix by matrix.

    Gargiulo et al., "Task Singular Vectors: Reducing Task Interference in Model Merging": of each of T
    matrices the ⌊min(m, n)/T⌋ leading triplets stay; the stacked U and V are replaced by their polar factors,
    and τ = λ U diag(S) Vᵀ. Tensors that are no matrix, or have fewer rows or columns than there are models,
    are averaged. It needs no data. One after another, T = 2, on τ_m and τ_t.

    Attributes:
        scale: λ (`lambda` in recipes).
    """

    of_updates: ClassVar[bool] = True
    paper: ClassVar[str] = "Gargiulo et al., 2025"
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    finite: ClassVar[bool] = True
    whole: ClassVar[int] = 12  # in float64: the updates' factors, the stacked bases and their own

    scale: float = 1.0

    def merge(self, operands: Operands) -> Iterator[Floats]:
        whole = slice(0, operands.size)
        count = len(operands.models)
        if len(operands.shape) != 2 or min(operands.shape) < count:
            origin = operands.origin(whole)
            total = sum(operands.updates(whole, origin), np.float32(0))
            yield np.asarray(origin + total / np.float32(count), np.float32)
            return
        import torch  # start-up: only matrices need it

        matrices = [torch.from_numpy(update.reshape(operands.shape)) for update in operands.updates(whole)]
        joint = _joined(matrices, self.scale).numpy().reshape(-1)
        yield (operands.origin(whole) + joint).astype(np.float32)

    def add(self, state: State, arrival: Arrival) -> State:
        merged = state["merged"]
        return {"merged": {name: self._pair(old, arrival.update[name]) for name, old in merged.items()}}

    def _pair(self, old: Tensor, new: Tensor) -> Tensor:
        if old.ndim != 2 or min(old.shape) < 2:
            return (old + new) / 2
        return _joined([old, new], self.scale).to(old.dtype)


def _joined(matrices: Sequence[Tensor], scale: float) -> Tensor:
    """Return λ U diag(S) Vᵀ in float64, with the bases that `singular_bases` makes of all matrices."""
    u, s, v = singular_bases(matrices)
    return (scale * u * s) @ v.T


def singular_bases(matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return orthonormal U and V and the singular values, those of all matrices side by side; float64."""
    import torch  # start-up: only matrices need it

    rank = min(matrices[0].shape) // len(matrices)
    factors = [torch.linalg.svd(matrix.double(), full_matrices=False) for matrix in matrices]
    bases = (
        torch.cat([u[:, :rank] for u, _, _ in factors], 1),
        torch.cat([vt[:rank].T for _, _, vt in factors], 1),
    )
    polar = [torch.linalg.svd(basis, full_matrices=False) for basis in bases]
    u, v = (p @ qt for p, _, qt in polar)
    return u, torch.cat([s[:rank] for _, s, _ in factors]), v
