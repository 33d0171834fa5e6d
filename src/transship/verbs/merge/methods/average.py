"""The running mean of all fine-tunes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transship.verbs.merge.maths.states import State, Vector, numbers
from transship.verbs.merge.protocol import Arrival, ContinualMethod


@dataclass(frozen=True, kw_only=True)
class Average(ContinualMethod):
    """Average all fine-tunes: θ_t = ((t − 1) θ_{t−1} + θ_t) / t.

    The state is Σ τ_k and t, so the order does not matter and a model can be taken out again.
    """

    paper: ClassVar[str] = "Wortsman et al., 2022"
    additive: ClassVar[bool] = True

    def first(self, arrival: Arrival) -> State:
        """Return τ_1 as the sum."""
        return {
            "sum": {name: change.clone() for name, change in arrival.update.items()},
            "numbers": numbers(count=1.0),
        }

    def add(self, state: State, arrival: Arrival) -> State:
        """Return the sum with τ_t."""
        return _moved(state, arrival.update, 1.0)

    def remove(self, state: State, arrival: Arrival) -> State:
        """Return the sum without τ_t."""
        return _moved(state, arrival.update, -1.0)

    def merged(self, state: State, base: Mapping[str, Tensor]) -> Vector:
        """Return Σ τ_k / t."""
        count = float(state["numbers"]["count"])
        return {name: total / count for name, total in state["sum"].items()}


def _moved(state: State, update: Mapping[str, Tensor], sign: float) -> State:
    total = {name: old.add(update[name], alpha=sign) for name, old in state["sum"].items()}
    return {"sum": total, "numbers": numbers(count=float(state["numbers"]["count"]) + sign)}
