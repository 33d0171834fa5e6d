"""TIES on the merged vector and the one that arrives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step


@dataclass(frozen=True, kw_only=True)
class Ties(ContinualMethod):
    """Trim the merged vector and the new update, elect a sign per entry, and add what agrees on top.

    Yadav et al., "TIES-Merging", made continual as FusionBench has it: the first step is λ τ_1; afterwards
    the rows of V = [τ_m, τ_t], flattened over the whole model, keep their largest share of entries, the sign
    of an entry is that of its sum (zero sums take the sign of the majority), agreeing entries are summed, and
    τ_m ← τ_m + λ · that. The merged vector feeds itself and grows; the result depends on the order.

    Attributes:
        density: the share of entries that each of the two keeps, exactly; of equal magnitudes the first.
        scale: λ.
    """

    paper: ClassVar[str] = "Yadav et al., 2023"
    copies: ClassVar[float] = 5.0

    density: float = 0.2
    scale: float = 0.5

    def first(self, step: Step) -> State:
        """Return λ τ_1."""
        return {"merged": {name: self.scale * change for name, change in step.update.items()}}

    def add(self, state: State, step: Step) -> State:
        """Return τ_m + λ · the agreeing entries of both."""
        old = state["merged"]
        rows = torch.stack([_flat(old), _flat({name: step.update[name] for name in old})])
        for row in rows:
            trim(row, self.density)
        joined = agree(rows)
        parts: tuple[Tensor, ...] = torch.split(joined, [tensor.numel() for tensor in old.values()])
        return {
            "merged": {
                name: tensor.add(part.view(tensor.shape), alpha=self.scale)
                for (name, tensor), part in zip(old.items(), parts, strict=True)
            }
        }


def trim(row: Float[Tensor, " entries"], density: float) -> None:
    """Set all but the ⌊density · n⌋ largest magnitudes to zero, in place; of equal ones the first stay."""
    keep = int(density * row.numel())
    if keep <= 0:
        row.zero_()
        return
    size = row.abs()
    threshold = size.kthvalue(row.numel() - keep + 1).values
    above = size > threshold
    at = (size == threshold).nonzero().squeeze(1)[: keep - int(above.sum())]
    above[at] = True
    row.mul_(above)


def agree(rows: Float[Tensor, "models entries"]) -> Float[Tensor, " entries"]:
    """Return the sum, per entry, of those that have the entry's elected sign."""
    signs = rows.sum(0).sign_()
    majority = signs.sum().sign()
    signs = torch.where(signs == 0, majority, signs)
    return torch.where(rows.sign() == signs, rows, rows.new_zeros(())).sum(0)


def _flat(vector: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in vector.values()])
