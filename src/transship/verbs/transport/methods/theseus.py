"""THESEUS: an update carried through the Procrustes maps of the layer's two sides."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.geometry import LinearMap, procrustes
from transship.geometry.moments import Part
from transship.verbs.transport.protocol import LayerPair, Needs, SidedMethod, require_number


@dataclass(frozen=True, kw_only=True)
class Theseus(SidedMethod):
    """Carry an update through orthogonal Procrustes maps of the layer's inputs and outputs.

    τ_B = T_outᵀ τ_A T_in and δb_B = T_outᵀ δb_A, where T = U Vᵀ of the cross moment H_Aᵀ H_B = U Σ Vᵀ: Eqs.
    (5)–(7) and (10) of Rinaldi et al., "Transporting Task Vectors across Different Architectures without
    Training". The paper prints T_out τ_A T_inᵀ; the shapes of its Eq. (5) and E = 0 in Eq. (9) give ours.
    Towards a wider target the Frobenius norm is kept; towards a narrower one the update is compressed.

    Attributes:
        centre: take the Moments about the means; the paper does not; a prototype showed no difference.
        whiten: power p ≤ 0.5 of T = polar(C_AA^−p C_AB C_BB^−p); 0 is the paper, 0.5 aligns canonical
            directions.
        complete: what T does where the calibration inputs say nothing: zero drops those parts of the update,
            identity completes T by a fixed rule, svd by LAPACK's choice as the paper's.
        hidden: weight of an MLP's units behind the activation in the map of these units, which stands on both
            sides of the activation: the first layer's outputs alone have too low a rank to place every unit.
            0 is the paper: a map for either side.
        tolerance: relative cut on singular values below which a direction counts as unseen; none takes the
            rounding of the Moments.
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), Eqs. 5–10, Algorithm 1"
    place_in_auto: ClassVar[int | None] = 2
    two_sided: ClassVar[bool] = False

    centre: bool = False
    whiten: float = 0.0
    complete: Literal["zero", "identity", "svd"] = "zero"
    hidden: float = 1.0
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Refuse powers, weights and cuts out of range."""
        require_number(self.name, "whiten", self.whiten, 0.0, 0.5)
        require_number(self.name, "hidden", self.hidden, 0.0)
        require_number(self.name, "tolerance", self.tolerance, 0.0, 1.0)

    @property
    def needs(self) -> Needs:
        """Cross moments; both sides' own moments too for whitening."""
        parts: tuple[Part, ...] = ("ab",) if self.whiten == 0 else ("aa", "bb", "ab")
        return Needs(parts=parts, hidden=self.hidden)

    def input_map(self, pair: LayerPair) -> LinearMap:
        """Return T_in of Eq. (7)."""
        return self._map(pair, "inputs")

    def output_map(self, pair: LayerPair) -> LinearMap:
        """Return T_out of Eq. (7)."""
        return self._map(pair, "outputs")

    def observed_map(self, pair: LayerPair) -> LinearMap | None:
        """Return T_in of Eq. (7) without what `complete` adds."""
        return None if self.complete == "zero" else dataclasses.replace(self, complete="zero").input_map(pair)

    def _map(self, pair: LayerPair, side: str) -> LinearMap:
        return procrustes(
            pair.side(side),
            centre=self.centre,
            whiten=self.whiten,
            complete=self.complete,
            tolerance=self.tolerance,
        )
