"""Feature alignment, then a supervised warm-up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.methods.fa import alignment
from transship.verbs.adapt.methods.warm import warm_up
from transship.verbs.adapt.train.problem import AdaptMethod, Phase


@dataclass(frozen=True, kw_only=True)
class FeatureAlignWarm(AdaptMethod):
    """Align features, warm up embedder and head on the target loss with the body frozen, then train
    everything.

    RECRAFT with FLD replaced by plain supervision for as many steps: the honest control of FLD.

    Attributes:
        fa_steps: steps of alignment.
        fa_rate: Adam's learning rate of the alignment.
        fa_batch: target rows against all source features.
        steps: of the warm-up.
        rate: of the warm-up.
        batch: rows per step of the warm-up.
    """

    needs_source: ClassVar[bool] = True
    uses_omega: ClassVar[bool] = True
    fa_steps: int = 60
    fa_rate: float = 3e-3
    fa_batch: int = 128
    steps: int = 48
    rate: float = 1e-3
    batch: int = 32

    def phases(self) -> Sequence[Phase]:
        return [
            alignment(self.fa_steps, self.fa_rate, self.fa_batch),
            warm_up(self.steps, self.rate, self.batch),
        ]
