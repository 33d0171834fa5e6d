"""Statistics of all models of a joint merge, summed one model at a time."""

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from transship.verbs.merge.maths.states import State, total
from transship.verbs.merge.protocol import Joint, Seen

# (task, its weights, its update, its share) → its sums
Taken = Callable[[Seen, Mapping[str, Tensor], Mapping[str, Tensor], float], State]


def summed(joint: Joint, taken: Taken) -> State:
    """Return the sum of all models' statistics; models are opened one after another."""
    return total(_states(joint, taken))


def _states(joint: Joint, taken: Taken) -> Iterator[State]:
    weights = joint.values.get("weight", [1.0] * len(joint.models))
    for place, (model, weight) in enumerate(zip(joint.models, weights, strict=True)):
        joint.progress("reading models", place, len(joint.models))
        update = model.update()
        tuned = {name: joint.base[name] + change for name, change in update.items()}
        yield taken(model.seen(), tuned, update, float(weight))
        model.close()
    joint.progress("reading models", len(joint.models), len(joint.models))
