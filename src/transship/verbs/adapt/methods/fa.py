"""Feature alignment alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.train.objectives import FeatureAlignment
from transship.verbs.adapt.train.protocol import PAPER, AdaptMethod, Phase


@dataclass(frozen=True, kw_only=True)
class FeatureAlign(AdaptMethod):
    """Move the embedder's features onto the source's (ω·W₁), then train everything: the paper's FA row.

    Attributes:
        fa_steps: steps of alignment (the paper's epochs: one step each).
        fa_rate: Adam's learning rate.
        fa_batch: target rows against all source features.
    """

    paper: ClassVar[str] = PAPER
    needs_source: ClassVar[bool] = True
    uses_omega: ClassVar[bool] = True
    fa_steps: int = 60
    fa_rate: float = 3e-3
    fa_batch: int = 128

    def phases(self) -> Sequence[Phase]:
        """Return the alignment."""
        return [alignment(self.fa_steps, self.fa_rate, self.fa_batch)]


def alignment(steps: int, rate: float, batch: int) -> Phase:
    """Return the phase: φ minimises ω·W₁, Eq. (14)."""
    return Phase("fa", steps, rate, batch, FeatureAlignment(), shared=False)
