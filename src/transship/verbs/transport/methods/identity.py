"""The update as it is, between layers of one shape."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from transship.geometry import LinearMap
from transship.verbs.transport.protocol import LayerPair, Needs, SidedMethod, require_same_shape


@dataclass(frozen=True, kw_only=True)
class Identity(SidedMethod):
    """Add the source's update unchanged; right only for models that share their coordinates.

    τ_B = τ_A: the unaligned baseline of THESEUS, Table 3, and the method of choice between relatives, one of
    which was made from the other (`auto` tells by the cosine of their weights).
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), baseline of Table 3"
    place_in_auto: ClassVar[int | None] = 1

    @property
    def needs(self) -> Needs:
        """Equal shapes, and blocks that are alike, where depths differ."""
        return Needs(same_shape=True, near_copies=True)

    def input_map(self, pair: LayerPair) -> LinearMap:
        return _identity(pair.shape[-1])

    def output_map(self, pair: LayerPair) -> LinearMap:
        return _identity(pair.shape[0])

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        """Return τ_A."""
        require_same_shape(update, pair, self.name)
        return update.clone()

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        """Return δb_A."""
        require_same_shape(update, pair, self.name)
        return update.clone()


def _identity(width: int) -> LinearMap:
    return LinearMap(torch.eye(width, dtype=torch.float64), kind="identity", rank=width)
