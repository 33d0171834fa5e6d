"""OPCM: new updates enter where the merged one is not."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from transship.verbs.merge.maths.states import State, norm, numbers
from transship.verbs.merge.protocol import Arrival, ContinualMethod


@dataclass(frozen=True, kw_only=True)
class Opcm(ContinualMethod):
    """Add to each matrix the part of the update that is orthogonal to what was merged, and keep the norm.

    Tang et al., "Merging Models on the Fly Without Retraining". Of a linear map's merged update U S Vᵀ the
    first r directions are those before Σ s passes `kept` of its total (the singular values, not their
    squares); P = Uᵀ τ_t V loses its leading r × r block and its diagonal, τ̃ = U P Vᵀ; other tensors
    enter whole. With raw = λ_{t−1} τ_m + τ̃ the norm of the model stays at the mean of the updates':
    λ_t = ‖raw‖ / mean ‖τ_i‖ and τ_m = raw / λ_t.

    Attributes:
        kept: α, the share of the singular values whose directions are closed to newcomers.
    """

    paper: ClassVar[str] = "Tang et al., 2025"

    kept: float = 0.5

    def first(self, arrival: Arrival) -> State:
        """Return τ_1, λ = 1."""
        merged = {name: change.clone() for name, change in arrival.update.items()}
        return {"merged": merged, "numbers": numbers(scaling=1.0, norms=norm(merged), count=1.0)}

    def add(self, state: State, arrival: Arrival) -> State:
        """Return the merged vector, λ_t, and the sum of the norms."""
        known = {name: float(value) for name, value in state["numbers"].items()}
        norms, count = known["norms"] + norm(arrival.update), known["count"] + 1.0
        raw = {}
        for name, old in state["merged"].items():
            new = arrival.update[name]
            part = beside(old, new, self.kept) if name in arrival.incoming.matrices else new
            raw[name] = part.add(old, alpha=known["scaling"])
        scaling = norm(raw) / (norms / count) if norms > 0 else 1.0
        for tensor in raw.values():
            tensor.div_(scaling or 1.0)
        return {"merged": raw, "numbers": numbers(scaling=scaling or 1.0, norms=norms, count=count)}


def beside(old: Float[Tensor, "m n"], new: Float[Tensor, "m n"], kept: float) -> Float[Tensor, "m n"]:
    """Return `new` without what it says in the leading directions of `old` and along its other pairs.

    Directions outside of the thin factors keep their entries, so the full ones are not needed:
    τ̃ = τ_t − U Q Vᵀ, where Q is the part of Uᵀ τ_t V that is taken out.
    """
    u, s, vt = torch.linalg.svd(old.double(), full_matrices=False)
    total = float(s.sum())
    if total == 0.0:
        return new
    leading = int(((s.cumsum(0) / total) > kept).double().argmax())
    projected = u.T @ new.double() @ vt.T
    taken = torch.diag(projected.diagonal())
    taken[:leading, :leading] = projected[:leading, :leading]
    left: Tensor = new.double() - u @ taken @ vt
    return left.to(new.dtype)
