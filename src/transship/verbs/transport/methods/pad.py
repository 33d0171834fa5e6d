"""The update laid into the corner of a larger weight."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from transship.geometry import LinearMap
from transship.verbs.transport.protocol import LayerPair, Needs, SidedMethod


@dataclass(frozen=True, kw_only=True)
class Pad(SidedMethod):
    """Lay the update into the top left corner and fill with zeros (or cut off what does not fit).

    τ_B = E_outᵀ τ_A E_in with rectangular identities E: the baseline τ_A^padded of THESEUS, Table 1.
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), baseline of Table 1"

    @property
    def needs(self) -> Needs:
        """The widths of the Moments, not their values."""
        return Needs(parts=("ab",))

    def input_map(self, pair: LayerPair) -> LinearMap:
        return _corner(pair, "inputs")

    def output_map(self, pair: LayerPair) -> LinearMap:
        return _corner(pair, "outputs")


def _corner(pair: LayerPair, side: str) -> LinearMap:
    moments = pair.side(side)
    identity = torch.eye(moments.width_a, moments.width_b, dtype=torch.float64)
    return LinearMap(identity, kind="pad", rank=min(identity.shape))
