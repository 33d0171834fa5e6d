"""States that add up: what RegMean and Fisher remember of the models that they have seen."""

from collections.abc import Iterable

from transship.verbs.merge.fusion.protocol import State


def combined(state: State, other: State, factor: float = 1.0) -> State:
    """Return state + factor · other, group by group; a model leaves with the factor −1."""
    return {
        group: {name: tensor + factor * other[group][name] for name, tensor in vector.items()}
        for group, vector in state.items()
        if group in other
    }


def total(states: Iterable[State]) -> State:
    """Return the sum of states, one held at a time beside it."""
    stream = iter(states)
    found = next(stream)
    for state in stream:
        found = combined(found, state)
    return found
