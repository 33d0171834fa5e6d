"""TransFusion: permutations that match the source's heads and neurons to the target's."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transship.errors import MatchError
from transship.geometry import LinearMap
from transship.verbs.transport.protocol import LayerPair, Needs, Rebasin, SidedMethod


@dataclass(frozen=True, kw_only=True)
class Transfusion(SidedMethod):
    """Permute the update as the source's heads and neurons are best matched to the target's, from weights
    alone.

    Coordinate descent over permutations (weight matching of Git Re-Basin); attention in two phases: heads are
    matched by the singular values of their slices, then the units within matched heads. Rinaldi et al.,
    "Update your transformer to the latest release: re-basin of task vectors". Needs equal shapes and no
    data.

    Attributes:
        residual: shared uses one permutation for the residual stream, which a plain transformer can absorb
            exactly; segments gives every stretch between two blocks' parts its own, as the paper does.
        sweeps: most passes over all groups; descent stops earlier when nothing changes.
    """

    paper: ClassVar[str] = "TransFusion (Rinaldi et al., ICML 2025)"

    residual: Literal["shared", "segments"] = "shared"
    sweeps: int = 100

    @property
    def needs(self) -> Needs:
        """Permutations, which the runner finds from both base models' weights."""
        return Needs(permutations=Rebasin(self.residual, self.sweeps), same_shape=True)

    def input_map(self, pair: LayerPair) -> LinearMap:
        return _permutation(pair.input_order, pair)

    def output_map(self, pair: LayerPair) -> LinearMap:
        return _permutation(pair.output_order, pair)


def _permutation(order: Int[Tensor, " units"] | None, pair: LayerPair) -> LinearMap:
    """P with P[order[i], i] = 1, so that (x P)_i = x_order[i]."""
    if order is None:
        raise MatchError("its units were not matched", where=pair.name, fix="use theseus for this pair")
    matrix: Float[Tensor, "units units"] = torch.zeros(order.numel(), order.numel(), dtype=torch.float64)
    matrix[order, torch.arange(order.numel())] = 1.0
    return LinearMap(matrix, kind="permutation", rank=order.numel())
