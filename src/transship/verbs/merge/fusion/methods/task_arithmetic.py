"""Task arithmetic, one update after another."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(ContinualMethod):
    """Add every update at one scale: τ_m ← τ_m + λ τ_t, the first one too.

    Ilharco et al., "Editing Models with Task Arithmetic". λ = 0.3 was chosen for CLIP.

    Attributes:
        scale: λ.
    """

    paper: ClassVar[str] = "Ilharco et al., 2023"
    additive: ClassVar[bool] = True

    scale: float = 0.3

    def first(self, step: Step) -> State:
        """Return λ τ_1."""
        return {"merged": {name: self.scale * change for name, change in step.update.items()}}

    def add(self, state: State, step: Step) -> State:
        """Return τ_m + λ τ_t."""
        return self._moved(state, step, self.scale)

    def remove(self, state: State, step: Step) -> State:
        """Return τ_m − λ τ_t."""
        return self._moved(state, step, -self.scale)

    def _moved(self, state: State, step: Step, scale: float) -> State:
        return {
            "merged": {name: old.add(step.update[name], alpha=scale) for name, old in state["merged"].items()}
        }
