"""The least-squares solution of the paper's own objective."""

from dataclasses import dataclass
from typing import ClassVar

from transship.geometry import LinearMap
from transship.geometry.fits import PSEUDO_INVERSE_TOLERANCE
from transship.geometry.spectral import spectrum
from transship.verbs.transport.protocol import LayerPair, Needs, SidedMethod, require_number


@dataclass(frozen=True, kw_only=True)
class Pinv(SidedMethod):
    """Solve the functional matching problem by pseudo-inverses of the target's second moments.

    τ_B = C_BB,out⁺ C_BA,out τ_A C_AB,in C_BB,in⁺: Eq. (21) of THESEUS, transposed to weight shapes. It is of
    the form T_outᵀ τ_A T_in with T = C_AB C_BB⁺; biases take T_outᵀ. Few calibration rows make it unstable.

    Attributes:
        tolerance: eigenvalues of C_BB below this share of the largest count as zero (1e-10, or the rounding
            of the Moments where that is larger, when none). The paper names none.
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), Eq. 21"

    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Refuse a cut out of range."""
        require_number(self.name, "tolerance", self.tolerance, 0.0, 1.0)

    @property
    def needs(self) -> Needs:
        """Cross moments and the target's own."""
        return Needs(parts=("bb", "ab"))

    def input_map(self, pair: LayerPair) -> LinearMap:
        """Return C_AB C_BB⁺ of the input side."""
        return self._map(pair, "inputs")

    def output_map(self, pair: LayerPair) -> LinearMap:
        """Return C_AB C_BB⁺ of the output side."""
        return self._map(pair, "outputs")

    def _map(self, pair: LayerPair, side: str) -> LinearMap:
        moments = pair.side(side)
        cut = (
            max(PSEUDO_INVERSE_TOLERANCE, 2 * moments.precision) if self.tolerance is None else self.tolerance
        )
        eigen = spectrum(moments.part("bb"), tolerance=cut, where=moments.name)
        return LinearMap(
            moments.part("ab") @ eigen.power(-1.0), kind="pinv", rank=eigen.rank, tolerance=eigen.tolerance
        )
