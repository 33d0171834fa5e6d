"""TSV-M: the leading singular vectors of all updates, made orthonormal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.methods._protocol import Floats, Operands, RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Tsvm(RecipeMethod):
    """Join the leading singular vectors of all updates, made orthonormal, matrix by matrix.

    Gargiulo et al., "Task Singular Vectors: Reducing Task Interference in Model Merging": of each of T
    matrices the ⌊min(m, n)/T⌋ leading triplets stay; the stacked U and V are replaced by their polar factors,
    and τ = λ U diag(S) Vᵀ. Tensors that are no matrix, or have fewer rows or columns than there are models,
    are averaged. It needs no data.

    Attributes:
        scale: λ (`lambda` in recipes).
    """

    paper: ClassVar[str] = "Gargiulo et al., 2025"
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    finite: ClassVar[bool] = True
    whole: ClassVar[int] = 12  # in float64: the updates' factors, the stacked bases and their own

    scale: float = 1.0

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor."""
        whole = slice(0, operands.size)
        count = len(operands.models)
        if len(operands.shape) != 2 or min(operands.shape) < count:
            origin = operands.origin(whole)
            total = sum((operands.update(index, whole, origin) for index in range(count)), np.float32(0))
            yield np.asarray(origin + total / np.float32(count), np.float32)
            return
        import torch

        from transship.verbs.merge.fusion.methods.tsvm import singular_bases

        matrices = [
            torch.from_numpy(operands.update(index, whole).reshape(operands.shape)) for index in range(count)
        ]
        u, s, v = singular_bases(matrices)
        joint = ((self.scale * u * s) @ v.T).numpy().reshape(-1)
        yield (operands.origin(whole) + joint).astype(np.float32)
