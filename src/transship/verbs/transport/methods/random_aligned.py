"""A random update through the maps of THESEUS: what the maps alone are worth."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from transship.geometry import LinearMap, procrustes
from transship.verbs.transport.protocol import LayerPair, MappedMethod, Needs, gaussian_like


@dataclass(frozen=True, kw_only=True)
class RandomAligned(MappedMethod):
    """Carry Gaussian noise with the norm of the source's update through the Procrustes maps.

    The baseline τ_A^(random→B) of THESEUS, Table 1: the alignment without the update. Whatever it gains, a
    step of that size in the aligned space gains, and the fine-tune has no part in it.
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), baseline of Table 1"
    place_in_auto: ClassVar[int | None] = 5
    part_in_auto: ClassVar[Literal["candidate", "head", "control"]] = "control"
    two_sided: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        return Needs(parts=("ab",), hidden=1.0)

    def carried(self, update: Float[Tensor, "..."], pair: LayerPair) -> Float[Tensor, "..."]:
        """Return R with ‖R‖ = ‖τ_A‖."""
        return gaussian_like(update, update.shape, pair.seed, pair.name)

    def input_map(self, pair: LayerPair) -> LinearMap:
        return procrustes(pair.side("inputs"))

    def output_map(self, pair: LayerPair) -> LinearMap:
        return procrustes(pair.side("outputs"))
