"""The base as it is: the control beside every merge."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.maths.states import State
from transship.verbs.merge.protocol import Arrival, ContinualMethod


@dataclass(frozen=True, kw_only=True)
class Unmerged(ContinualMethod):
    """Merge nothing: the unmerged base, so that heads alone can be told from merging."""

    paper: ClassVar[str] = "control"
    additive: ClassVar[bool] = True
    copies: ClassVar[float] = 0.0

    def first(self, arrival: Arrival) -> State:
        return {"merged": {name: change.new_zeros(change.shape) for name, change in arrival.update.items()}}

    def add(self, state: State, arrival: Arrival) -> State:
        return state

    def remove(self, state: State, arrival: Arrival) -> State:
        return state
