"""ORCA."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.train.objectives import DatasetDistance
from transship.verbs.adapt.train.protocol import AdaptMethod, Phase


@dataclass(frozen=True, kw_only=True)
class Orca(AdaptMethod):
    """Align each target class with the labelled source by optimal transport dataset distance, then train all.

    Label distances are those of Gaussians with diagonal covariances; classes of numeric targets are k-means
    codes.

    Attributes:
        steps: steps of alignment (the paper's epochs).
        rate: Adam's learning rate.
        per_class: the most rows of each class per step.
        source_items: source features per step.
    """

    paper: ClassVar[str] = 'Shen et al., "Cross-Modal Fine-Tuning: Align then Refine" (ICML 2023)'
    needs_source: ClassVar[bool] = True
    steps: int = 60
    rate: float = 3e-3
    per_class: int = 128
    source_items: int = 1000

    def phases(self) -> Sequence[Phase]:
        """Return the alignment."""
        distance = DatasetDistance(source_items=self.source_items, per_class=self.per_class)
        return [Phase("otdd", self.steps, self.rate, None, distance, shared=False)]
