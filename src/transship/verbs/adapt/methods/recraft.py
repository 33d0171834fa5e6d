"""RECRAFT."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship.verbs.adapt.methods.fa import alignment
from transship.verbs.adapt.train.objectives import LabelDistortion
from transship.verbs.adapt.train.protocol import PAPER, AdaptMethod, Phase


@dataclass(frozen=True, kw_only=True)
class RecraftMethod(AdaptMethod):
    """Minimise feature alignment and feature-label distortion over the embedder, then fit the target.

    Stage 1: FA (ω·W₁, Eq. 14), then FLD (H[Z'|Z], Eq. 20) with the source frozen, as in Algorithm 1; or both
    in one sum, Eq. (22). The embedder of the FLD phase is the one on which a held-out probe errs
    least, and that of FA when FLD does not fall or the probe gets worse. Stage 2: the target loss, Eq. (24).

    Attributes:
        objective_order: `sequence` is Algorithm 1, `sum` is Eq. (22).
        fa_steps: steps of alignment (the paper's epochs: one step each).
        fa_rate: Adam's learning rate of the alignment.
        fa_batch: target rows against all source features.
        fld_steps: steps of FLD; the paper's 2 to 4 epochs assume tens of thousands of samples.
        fld_rate: Adam's learning rate of FLD.
        fld_batch: rows per step of FLD.
        keep: how much of ω·W₁ stays in the loss while FLD is minimised.
        select: choose the embedder of the FLD phase on held-out rows; otherwise it is the last one.
    """

    paper: ClassVar[str] = PAPER
    needs_source: ClassVar[bool] = True
    uses_omega: ClassVar[bool] = True
    objective_order: Literal["sequence", "sum"] = "sequence"
    fa_steps: int = 60
    fa_rate: float = 3e-3
    fa_batch: int = 128
    fld_steps: int = 48
    fld_rate: float = 1e-3
    fld_batch: int = 32
    keep: float = 0.0
    select: bool = True

    def phases(self) -> Sequence[Phase]:
        """Return FA and FLD."""
        if self.objective_order == "sum":
            both = LabelDistortion(alignment=1.0)
            steps = self.fa_steps + self.fld_steps
            return [Phase("fa+fld", steps, self.fld_rate, self.fld_batch, both, select=self.select)]
        distortion = LabelDistortion(alignment=self.keep)
        return [
            alignment(self.fa_steps, self.fa_rate, self.fa_batch),
            Phase("fld", self.fld_steps, self.fld_rate, self.fld_batch, distortion, select=self.select),
        ]
