"""Methods that run the models on data before they can merge a tensor; torch comes with the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from transship.verbs.merge.methods._protocol import Floats, Operands, RecipeMethod

if TYPE_CHECKING:
    from torch import Tensor

    from transship.verbs.merge.fusion.protocol import Seen

    Vector = dict[str, Tensor]


Watch = Callable[[int, int, str], None]


def nobody(done: int, total: int, what: str) -> None:
    """Tell nobody how far the work is."""


class Learner(Protocol):
    """One model of a joint merge: its update, and how it runs. Both may be made anew at every call.

    Attributes:
        name: what the recipe calls it.
    """

    @property
    def name(self) -> str: ...

    def update(self) -> Vector:
        """Return τ = θ − θ_0, float32."""

    def seen(self) -> Seen:
        """Return the model over its inputs, with its own head."""

    def labels(self) -> Tensor | None:
        """Return the classes of the inputs, in the order of the head's outputs; None without labels."""

    def close(self) -> None:
        """Let go of the module that runs, until `seen` is called again."""


@dataclass(frozen=True)
class Occasion:
    """What a method learns from.

    Attributes:
        base: θ_0 of the tensors that the models run with.
        models: in the recipe's order.
        values: parameter → its value for each of `models`.
        seed: the recipe's.
        watch: called with (steps done, steps in all, what) as the work goes on.
    """

    base: Mapping[str, Tensor]
    models: Sequence[Learner]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seed: int = 0
    watch: Watch = nobody


class LearnedMethod(RecipeMethod):
    """A method that reads data, or needs whole models in memory, before it merges.

    Attributes:
        copies: (a, b): a + b n float32 copies of the model in memory while it learns from n models.
        all_blocks: whether what all blocks make of a batch waits in memory, for derivatives or for the end
            of the pass; else that of one block.
        needs_labels: whether inputs must have classes.
        batch_size: inputs per pass.
    """

    copies: ClassVar[tuple[float, float]] = (4.0, 0.0)
    all_blocks: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False

    batch_size: int

    @property
    def at_once(self) -> int:
        """The inputs that are in memory at once."""
        return self.batch_size

    @property
    def wants_survey(self) -> bool:
        """Every tensor waits for what is learnt."""
        return True

    def learn(self, occasion: Occasion) -> Vector:
        """Return the joint update of the tensors in `occasion.base`."""
        raise TypeError(f"{type(self).__name__} does not say what it learns")

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield b + τ; tensors that the models do not run with are averaged."""
        change = operands.survey.get(operands.name)
        flat = None if change is None else change.reshape(-1).numpy()
        for part in operands.parts():
            origin = operands.origin(part)
            if flat is not None:
                yield np.add(origin, flat[part])
                continue
            total = operands.update(0, part, origin)
            for index in range(1, len(operands.models)):
                total += operands.update(index, part, origin)
            yield np.add(origin, total / np.float32(len(operands.models)))


def fold(method: Any, occasion: Occasion) -> Vector:
    """Return what a continual method makes of the models, taken in the given order."""
    from transship.verbs.merge.fusion.protocol import Step

    state, before = None, None
    for number, model in enumerate(occasion.models, 1):
        if number > 2:  # the one before is still read
            occasion.models[number - 3].close()
        seen = model.seen()
        step = Step(
            number=number,
            base=occasion.base,
            update=model.update(),
            incoming=seen,
            previous=before if method.replay else None,
            seed=occasion.seed,
        )
        state = method.first(step) if state is None else method.add(state, step)
        occasion.watch(number, len(occasion.models), model.name)
        before = seen
    found: Vector = method.merged(state, occasion.base)
    return found
