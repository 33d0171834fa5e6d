"""A random update of the source's size: what a step in any direction does."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from transship.verbs.transport.protocol import LayerPair, TransportMethod, gaussian_like


@dataclass(frozen=True, kw_only=True)
class Random(TransportMethod):
    """Add Gaussian noise with the norm of the source's update, layer by layer.

    The baseline τ_B^random of THESEUS, Table 1: it knows neither the update nor the maps.
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), baseline of Table 1"

    def carried(self, update: Float[Tensor, "..."], pair: LayerPair) -> Float[Tensor, "..."]:
        """Return noise of the update's shape and norm."""
        return gaussian_like(update, update.shape, pair.seed, pair.name)

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        """Return noise of the target's shape with ‖τ_B‖ = ‖τ_A‖."""
        return gaussian_like(update, pair.shape, pair.seed, pair.name)

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        """Return noise of the bias' length and norm."""
        return gaussian_like(update, pair.shape[:1], pair.seed, pair.name)
