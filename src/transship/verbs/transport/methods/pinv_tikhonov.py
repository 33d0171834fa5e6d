"""The least-squares solution with a penalty on the size of the update."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from transship.geometry import LinearMap, Moments, tikhonov
from transship.geometry.spectral import spectrum
from transship.verbs.transport.protocol import LayerPair, Needs, TransportMethod, require_number


@dataclass(frozen=True, kw_only=True)
class PinvTikhonov(TransportMethod):
    """Solve the functional matching problem with a Tikhonov penalty.

    Minimises ‖H_B,in τ_Bᵀ H_B,outᵀ − G_A‖² + λ‖τ_B‖² (form `exact`), or replaces each pseudo-inverse of Eq.
    (21) of THESEUS by (C_BB + λI)⁻¹ (form `per-side`), which is another problem. The paper says neither
    which nor what λ.

    Attributes:
        penalty: λ relative to the mean eigenvalue of C_BB per side (to the product of both means when exact),
            so that it means the same at every layer.
        form: exact or per-side.
    """

    paper: ClassVar[str] = "THESEUS (Rinaldi et al.), Sec. 4.2 and Eq. 21"

    penalty: float = 0.01
    form: Literal["exact", "per-side"] = "exact"

    def __post_init__(self) -> None:
        require_number(self.name, "penalty", self.penalty, 0.0, above=True)

    @property
    def needs(self) -> Needs:
        """Cross moments and the target's own."""
        return Needs(parts=("bb", "ab"))

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        sides = pair.side("inputs"), pair.side("outputs")
        return tikhonov(*sides, update, self.penalty, per_side=self.form == "per-side")

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        """Return (C_BB + λI)⁻¹ C_BA δb: the bias that is felt alike along the observed outputs."""
        moments = pair.side("outputs")
        vectors, inverse = self._inverse(moments)
        moved: Tensor = vectors @ (inverse * (vectors.T @ (moments.part("ab").T @ update.double())))
        return moved.to(update.dtype)

    def space_map(self, pair: LayerPair) -> LinearMap:
        """Return C_AB (C_BB + λI)⁻¹: rows have one side, so the penalised problem has one inverse."""
        moments = pair.side("inputs")
        vectors, inverse = self._inverse(moments)
        matrix: Tensor = ((moments.part("ab") @ vectors) * inverse) @ vectors.T
        return LinearMap(matrix, kind="tikhonov", rank=int((inverse > 0).sum()))

    def _inverse(self, moments: Moments) -> tuple[Float[Tensor, "b b"], Float[Tensor, " b"]]:
        """Return the eigenvectors of C_BB and 1 / (its eigenvalues + λ)."""
        eigen = spectrum(moments.part("bb"), where=moments.name)
        shrunk = eigen.values + self.penalty * eigen.values.mean()
        return eigen.vectors, torch.where(shrunk > 0, 1.0 / shrunk, torch.zeros_like(shrunk))
