"""The base as it is: the control beside every merge."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step


@dataclass(frozen=True, kw_only=True)
class Base(ContinualMethod):
    """Merge nothing: the unmerged base, so that heads alone can be told from merging."""

    paper: ClassVar[str] = "control"
    additive: ClassVar[bool] = True
    copies: ClassVar[float] = 0.0

    def first(self, step: Step) -> State:
        """Return a zero vector."""
        return {"merged": {name: change.new_zeros(change.shape) for name, change in step.update.items()}}

    def add(self, state: State, step: Step) -> State:
        """Return the same."""
        return state

    def remove(self, state: State, step: Step) -> State:
        """Return the same."""
        return state
