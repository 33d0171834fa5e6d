"""Task arithmetic: weighted updates on top of the base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from transship.verbs.merge.methods._updates import UpdateMethod
from transship.verbs.merge.protocol import Arrival, ContinualMethod, parameter

if TYPE_CHECKING:
    from transship.verbs.merge.maths.states import State


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(UpdateMethod, ContinualMethod):
    """Add the weighted updates of all models to the base.

    b + λ Σ_i w_i (x_i − b), after Ilharco et al., "Editing Models with Task Arithmetic". One after another,
    every update enters at one scale, the first one too: τ_m ← τ_m + λ τ_t.

    Attributes:
        density: accepted for recipes that set it; all entries are kept.
        scale: λ (`lambda` in recipes); 0.3 was chosen for CLIP.
        rescale: accepted for recipes that set it; nothing is dropped, so nothing is made up for.
    """

    paper: ClassVar[str] = "Ilharco et al., 2023"
    elementwise: ClassVar[bool] = True
    parity: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    scale: float = parameter(1.0, fusion=0.3)

    def first(self, arrival: Arrival) -> State:
        """Return λ τ_1."""
        return {"merged": {name: self.scale * change for name, change in arrival.update.items()}}

    def add(self, state: State, arrival: Arrival) -> State:
        """Return τ_m + λ τ_t."""
        return _moved(state, arrival, self.scale)

    def remove(self, state: State, arrival: Arrival) -> State:
        """Return τ_m − λ τ_t."""
        return _moved(state, arrival, -self.scale)


def _moved(state: State, arrival: Arrival, scale: float) -> State:
    merged = state["merged"]
    return {"merged": {name: old.add(arrival.update[name], alpha=scale) for name, old in merged.items()}}
