"""Feature alignment alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transship.verbs.adapt.model.network import pooled
from transship.verbs.adapt.train.losses import SinkhornAlignment
from transship.verbs.adapt.train.problem import PAPER, AdaptMethod, Index, LearningProblem, Objective, Phase


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
        return [alignment(self.fa_steps, self.fa_rate, self.fa_batch)]

    def path(self, points: int) -> Sequence[tuple[dict[str, Any], str]]:
        return [({"fa_steps": place}, name) for place, name in places_along(points, self.fa_steps)]


class FeatureAlignment(Objective):
    """ω·W₁ between token means of φ(x) and of the source, Eq. (14); the body is not run."""

    def __init__(self, problem: LearningProblem, weight: float = 1.0) -> None:
        super().__init__(problem)
        self.weight = weight * problem.known.omega
        self.alignment = SinkhornAlignment(problem.known.features.to(problem.device))

    def loss(self, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return ω·W₁ of the batch."""
        return self.of(self.problem.embedded(index))

    def of(self, tokens: Tensor) -> Float[Tensor, ""]:
        """Return ω·W₁ of embedded tokens."""
        return self.weight * self.alignment(pooled(tokens).float())

    def state(self) -> dict[str, Tensor]:
        return self.alignment.state()

    def load(self, state: dict[str, Tensor]) -> None:
        self.alignment.load(state)


def alignment(steps: int, rate: float, batch: int) -> Phase:
    """Return the phase: φ minimises ω·W₁, Eq. (14)."""
    return Phase("fa", steps, rate, batch, FeatureAlignment, shared=False)


def places_along(points: int, first: int, second: int = 0, *, apart: bool = True) -> list[tuple[int, str]]:
    """Return so many places along FA and FLD with their names, and where the one ends, if they are apart."""
    places = {round(place) for place in np.linspace(0, first + second, points)}
    names = {0: "no stage 1: NFT", first + second: "all of stage 1"}
    if second and apart:
        places.add(first)
    return [
        (place, names.get(place, "FA" if place == first else f"{place} steps of stage 1"))
        for place in sorted(places)
    ]
