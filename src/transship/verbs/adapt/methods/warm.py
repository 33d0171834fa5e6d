"""A supervised warm-up of the embedder, without any source."""

from collections.abc import Sequence
from dataclasses import dataclass

from transship.verbs.adapt.train.problem import AdaptMethod, Phase, TargetLoss


@dataclass(frozen=True, kw_only=True)
class Warm(AdaptMethod):
    """Warm up embedder and head on the target loss while the body is frozen, then train everything.

    The plain control of FLD: as many supervised steps for the embedder, and no source.

    Attributes:
        steps: of the warm-up.
        rate: of the warm-up.
        batch: rows per step.
    """

    steps: int = 48
    rate: float = 1e-3
    batch: int = 32

    def phases(self) -> Sequence[Phase]:
        return [warm_up(self.steps, self.rate, self.batch)]


def warm_up(steps: int, rate: float, batch: int) -> Phase:
    """Return the phase: φ and head learn the task, the body is frozen."""
    return Phase("warm", steps, rate, batch, TargetLoss, frozenset({"embedder", "head"}))
