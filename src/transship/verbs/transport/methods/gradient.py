"""Output maps from what the loss sees: Procrustes on output gradients."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from transship.geometry import LinearMap, Moments, polar, procrustes
from transship.geometry.spectral import default_tolerance
from transship.verbs.transport.protocol import LayerPair, Needs, SidedMethod, require_number


@dataclass(frozen=True, kw_only=True)
class Gradient(SidedMethod):
    """Align inputs as THESEUS does, and outputs by the gradients that both base models receive.

    τ_B = T_outᵀ τ_A T_in with T_in of Eq. (7) of THESEUS and T_out = polar(G_Aᵀ G_B), G = ∂L/∂y per token. To
    first order ΔL = Σ gᵀ τ x, so the output side should align what the loss sees. L is the cross entropy of
    each *base* model against the fine-tuned source's own predictions on the same unlabelled inputs: no
    labels are used. With `blend`, T_out = polar((1 − β) C_act/‖C_act‖_* + β C_grad/‖C_grad‖_*), nuclear
    norms: steadier on targets where gradients alone lose a task.

    Attributes:
        blend: β, the share of the gradients in the output map; 1 takes gradients alone, 0 is THESEUS.
    """

    paper: ClassVar[str] = "ours; output gradients after the merge-and-rebase code of the authors of THESEUS"
    place_in_auto: ClassVar[int | None] = 3

    blend: float = 0.5

    def __post_init__(self) -> None:
        require_number(self.name, "blend", self.blend, 0.0, 1.0)

    @property
    def needs(self) -> Needs:
        """Cross moments of activations and of output gradients."""
        return Needs(parts=("ab",), gradients=True, hidden=1.0)

    def input_map(self, pair: LayerPair) -> LinearMap:
        return procrustes(pair.side("inputs"))

    def output_map(self, pair: LayerPair) -> LinearMap:
        """Return the polar factor of the blended cross moments."""
        gradients = pair.side("gradients")
        if self.blend == 1.0:
            return procrustes(gradients)
        outputs = pair.side("outputs")
        cross = (1.0 - self.blend) * _unit(outputs) + self.blend * _unit(gradients)
        cut = default_tolerance(cross, max(outputs.precision, gradients.precision))
        rotation = polar(cross, tolerance=cut, where=pair.name)
        return LinearMap(rotation.factor, kind="procrustes", rank=rotation.rank, tolerance=cut)


def _unit(moments: Moments) -> Float[Tensor, "a b"]:
    """C / ‖C‖_*, the nuclear norm: the two moments have no common scale."""
    cross = moments.part("ab")
    nuclear = torch.linalg.matrix_norm(cross, "nuc")
    return cross / nuclear if nuclear > 0 else cross
