"""TIES: trim, elect signs, merge what agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from transship.errors import OptionError
from transship.verbs.merge.maths.operands import Operands, Survey
from transship.verbs.merge.maths.selection import kth_in_model
from transship.verbs.merge.maths.updates import Largest, Sparsifier, by_magnitude
from transship.verbs.merge.methods._updates import UpdateMethod
from transship.verbs.merge.protocol import Arrival, ContinualMethod, parameter

if TYPE_CHECKING:
    from torch import Tensor

    from transship.verbs.merge.maths.states import State, Vector


@dataclass(frozen=True, kw_only=True)
class Ties(UpdateMethod, ContinualMethod):
    """Keep the largest entries of each update, elect a sign for each entry, and merge those that agree.

    Yadav et al., "TIES-Merging: Resolving Interference When Merging Models", Algorithm 1. Recipes trim each
    tensor by itself, as mergekit does; the paper trims over the whole model (`trim: global`).

    One after another, as FusionBench has it: the first step is λ τ_1; afterwards the rows of V = [τ_m, τ_t],
    flattened over the whole model, keep their largest share of entries, the sign of an entry is that of its
    sum (zero sums take the sign of the majority), agreeing entries are summed, and τ_m ← τ_m + λ · that. The
    merged vector feeds itself and grows; the result depends on the order.

    Attributes:
        density: the share of each update's entries that is kept, exactly; of equal magnitudes the first.
        trim: `tensor` keeps the share of each tensor, exactly, of equal magnitudes the lower index; `global`
            keeps it of the whole model and, as the paper's code, every entry at the threshold.
        scale: λ (`lambda` in recipes).
    """

    paper: ClassVar[str] = "Yadav et al., 2023"
    parity: ClassVar[bool] = True
    whole: ClassVar[int] = 1
    elect: ClassVar[bool] = True
    copies: ClassVar[float] = 5.0

    density: float = parameter(1.0, fusion=0.2)
    normalize: bool = parameter(True, only="recipe")
    scale: float = parameter(1.0, fusion=0.5)
    trim: Literal["tensor", "global"] = parameter("tensor", only="recipe")

    @property
    def wants_survey(self) -> bool:
        """Return whether thresholds are taken over the whole model."""
        return self.trim == "global"

    def survey(self, tensors: Survey) -> list[float]:
        """Return each model's threshold: its ⌊density·n⌋-th largest magnitude in the whole model."""
        return [kth_in_model(tensors, index, density) for index, density in enumerate(_densities(tensors))]

    def sparsifier(self, operands: Operands, index: int) -> Sparsifier:
        if self.trim == "global":
            # all that equal the threshold stay: so the order of the tensors cannot matter
            return Largest(operands.survey[index], places=1, ties=1)
        return by_magnitude(operands, index, operands.number("density")[index])

    def first(self, arrival: Arrival) -> State:
        """Return λ τ_1."""
        return {"merged": {name: self.scale * change for name, change in arrival.update.items()}}

    def add(self, state: State, arrival: Arrival) -> State:
        """Return τ_m + λ · the agreeing entries of both."""
        old = state["merged"]
        agreed = _agreeing([old, {name: arrival.update[name] for name in old}], self.density)
        return {"merged": {name: old[name].add(part, alpha=self.scale) for name, part in agreed.items()}}


def _densities(tensors: Survey) -> list[float]:
    """Return each model's density, which has to be the same in all tensors."""
    densities = {tuple(operands.number("density")) for operands in tensors()}
    if len(densities) > 1:
        raise OptionError(
            "density differs between tensors", where="trim: global", fix="give one density, or trim: tensor"
        )
    return list(densities.pop())


def _agreeing(vectors: Sequence[Vector], density: float) -> Vector:
    """Return, tensor by tensor, what agrees of vectors that are trimmed over the whole model."""
    sizes = [tensor.numel() for tensor in vectors[0].values()]
    rows = next(iter(vectors[0].values())).new_empty(len(vectors), sum(sizes))
    for row, vector in zip(rows, vectors, strict=True):
        for part, tensor in zip(row.split_with_sizes(sizes), vector.values(), strict=True):
            part.copy_(tensor.reshape(-1))
        trim(row, density)
    parts = agree(rows).split_with_sizes(sizes)
    return {
        name: part.view(tensor.shape) for (name, tensor), part in zip(vectors[0].items(), parts, strict=True)
    }


def trim(row: Tensor, density: float) -> None:
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


def agree(rows: Tensor) -> Tensor:
    """Return the sum, per entry, of those rows [models, entries] that have the entry's elected sign."""
    signs = rows.sum(0).sign_()
    signs = signs.where(signs != 0, signs.sum().sign())
    return rows.where(rows.sign() == signs, rows.new_zeros(())).sum(0)
