"""What a continual method is: how a model that arrives changes the state, and what vector that stands for.

All tensors are float32 and named as in the base's backbone; heads never take part.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from transship.activations import Reading
from transship.registry import Method, build_method, method_names

# name of a backbone tensor → values: weights, or a change of weights
Vector = dict[str, Tensor]
# group → name → tensor; one file per group on disk, of a size that does not grow with the models
State = dict[str, Vector]

FAMILY = "merge start"  # the registry's name for these methods


class Seen(Protocol):
    """One task as a method sees it: unlabelled inputs, and the model with any backbone before its own head.

    Attributes:
        name: the task's.
        count: its inputs.
        module: the task's nn.Module, for hooks around `read`; its own weights mean nothing.
        names: backbone tensor → parameter of `module`.
        matrices: backbone weight of a linear map → path of its module; embeddings are none.
    """

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def module(self) -> nn.Module: ...
    @property
    def names(self) -> Mapping[str, str]: ...
    @property
    def matrices(self) -> Mapping[str, str]: ...

    def batch(self, rows: Iterable[int]) -> Any:
        """Return some of the inputs as the model reads them."""

    def batches(self, size: int) -> Iterator[Any]:
        """Yield all inputs, in order."""

    def draws(self, size: int, seed: int) -> Iterator[list[int]]:
        """Yield rows for `batch` without end, each pass over the inputs in a new order."""

    def read(self, backbone: Mapping[str, Tensor], batch: Any) -> Reading:
        """Return features [inputs, width] and, with the task's own head, logits; differentiable."""


@dataclass(frozen=True, eq=False)
class Step:
    """A model that arrives (or, for `remove`, leaves).

    Attributes:
        number: t, from 1: how many models there are with this one.
        base: θ_0.
        update: τ_t = θ_t − θ_0.
        incoming: the task of this model. Its inputs may be none when the method needs no data.
        previous: the task that came before, with the inputs kept of it; None at the first step, or when the
            method does not ask for `replay`.
        seed: for draws.
    """

    number: int
    base: Mapping[str, Tensor]
    update: Mapping[str, Tensor]
    incoming: Seen
    previous: Seen | None = None
    seed: int = 0

    @property
    def tuned(self) -> Vector:
        """θ_t."""
        return {name: self.base[name] + change for name, change in self.update.items()}


class ContinualMethod(Method):
    """A method that takes models one after another.

    Attributes:
        needs_data: whether `add` reads the incoming task's inputs.
        replay: whether `add` also reads inputs of the task before it.
        additive: whether `remove` exists; then the order of the models does not matter.
        copies: float32 copies of the backbone in memory during `add`, beside the base, τ_t and the state.
    """

    needs_data: ClassVar[bool] = False
    replay: ClassVar[bool] = False
    additive: ClassVar[bool] = False
    copies: ClassVar[float] = 1.0

    def first(self, step: Step) -> State:
        """Return the state after the first model; the state is the update itself unless said otherwise."""
        return {"merged": {name: change.clone() for name, change in step.update.items()}}

    def add(self, state: State, step: Step) -> State:
        """Return the state after one more model; `state` is not changed."""
        raise TypeError(f"{type(self).__name__} does not say how it adds")

    def remove(self, state: State, step: Step) -> State:
        """Return the state as if the model of `step` had never come; only where `additive`."""
        raise TypeError(f"{type(self).__name__} cannot take a model out")

    def merged(self, state: State, base: Mapping[str, Tensor]) -> Vector:
        """Return τ_m."""
        return state["merged"]

    def memory(self, sizes: Mapping[str, torch.Size]) -> int:
        """Return the bytes that `add` holds beside the base, τ_t, the state and activations."""
        return int(self.copies * 4 * sum(size.numel() for size in sizes.values()))


def continual_names() -> tuple[str, ...]:
    """Return the names that `merge start --method` takes."""
    return method_names(FAMILY)


def continual_method(name: str, options: Mapping[str, Any] | None = None) -> ContinualMethod:
    """Return the method `name` with `options` as its fields."""
    made: ContinualMethod = build_method(FAMILY, name, options)
    return made


def numbers(**values: float) -> Vector:
    """Return a group of plain numbers for a State, in double precision."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def norm(vector: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm over the whole model."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in vector.values()))
