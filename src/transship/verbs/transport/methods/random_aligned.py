"""A random update through the maps of THESEUS: what the maps alone are worth."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from transship.geometry import LinearMap, procrustes
from transship.verbs.transport.draws import gaussian_like
from transship.verbs.transport.protocol import LayerPair, Requirements, TransportMethod, move, move_vector


@dataclass(frozen=True, kw_only=True)
class RandomAligned(TransportMethod):
    """Carry Gaussian noise with the norm of the source's update through the Procrustes maps.

    The baseline τ_A^(random→B) of THESEUS, Table 1: the alignment without the update. Whatever it gains, a
    step of that size in the aligned space gains, and the fine-tune has no part in it.
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), baseline of Table 1"

    @property
    def requirements(self) -> Requirements:
        """Cross moments."""
        return Requirements(parts=("ab",), hidden=1.0)

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        """Return T_outᵀ R T_in with ‖R‖ = ‖τ_A‖."""
        noise = gaussian_like(update, update.shape, pair.seed, pair.name)
        return move(noise, self._map(pair, "inputs"), self._map(pair, "outputs"))

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        """Return T_outᵀ r with ‖r‖ = ‖δb_A‖."""
        noise = gaussian_like(update, update.shape, pair.seed, pair.name)
        return move_vector(noise, self._map(pair, "outputs"))

    def _map(self, pair: LayerPair, side: str) -> LinearMap:
        return procrustes(pair.side(side))
