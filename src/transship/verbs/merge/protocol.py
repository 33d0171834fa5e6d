"""What a method is. One class has the facets it has: tensor by tensor, on data, one model after another.

Recipes that read no data run without torch, so nothing here imports it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from transship.errors import OptionError
from transship.progress import Progress, quiet
from transship.registry import Method, has_method, method_class, method_names, parse_fields, unknown
from transship.verbs.merge.maths.operands import Floats, Operands, Survey

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from transship.activations import Reading
    from transship.verbs.merge.maths.states import State, Vector

Facet = Literal["recipe", "fusion"]
_WHERE: dict[Facet, str] = {"recipe": "in recipes", "fusion": "one after another"}


def parameter(
    default: Any, *, only: Facet | None = None, fusion: Any = dataclasses.MISSING
) -> Any:  # as `dataclasses.field`: any type's default
    """Return a field of a method that not all of its facets read, or not with one default.

    Args:
        default: in recipes, and everywhere unless `fusion` is given.
        only: the facet that reads it: a `recipe`, or a `fusion`, where models come one by one.
        fusion: the default in a fusion.
    """
    note = f"({_WHERE[only]} only)" if only else f"({_WHERE['fusion']}: {fusion})"
    other = {} if fusion is dataclasses.MISSING else {"fusion": fusion}
    return field(default=default, metadata={"only": only, "note": note, **other})


def parameters_of(kind: type[Method], facet: Facet) -> dict[str, Any]:
    """Return the parameters that a facet of a method reads, with their defaults there."""
    return {
        entry.name: entry.metadata.get(facet, entry.default)
        for entry in dataclasses.fields(kind)  # type: ignore[arg-type]
        if entry.metadata.get("only") in (None, facet)
    }


class RecipeMethod(Method):
    """A method that joins models tensor by tensor.

    The fields of the dataclass are its parameters. Those in `per_model` have a value for each model in
    `Operands`.

    Attributes:
        base: `required` or `optional`: b is read apart; `input`: a base is a model like the others.
        least: the fewest models that it takes, the base not counted where it is read apart.
        most: the most models, or None.
        required: parameters that a recipe must give.
        per_model: parameters with a value for each model.
        spelling: field → the parameter's name in recipes, where that is no Python name.
        whole: float32 copies of one tensor that it holds in memory.
        elementwise: whether an entry of the output depends on the same entry of the inputs alone.
        parity: whether `arithmetic: mergekit` can round its steps; the others are refused with it where
            mergekit would work in bfloat16 or float16, and are the same as without it in float32.
        finite: whether NaN or infinities in an input stop it, so that inputs are looked at beforehand.
        linear: whether it is a weighted sum of the models, which low-rank factors can give exactly.
        of_updates: whether the result is b plus a function of the updates alone, so that adapters can be
            merged without their base.
    """

    base: ClassVar[Literal["required", "optional", "input"]] = "required"
    least: ClassVar[int] = 1
    most: ClassVar[int | None] = None
    required: ClassVar[tuple[str, ...]] = ()
    per_model: ClassVar[tuple[str, ...]] = ()
    spelling: ClassVar[Mapping[str, str]] = {}
    whole: ClassVar[int] = 0
    parity: ClassVar[bool] = False
    finite: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    of_updates: ClassVar[bool] = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor in flat parts, in order; each is used up before the next."""
        raise TypeError(f"{type(self).__name__} does not say how it merges")

    @property
    def wants_survey(self) -> bool:
        """Return whether the method has to see all tensors before it can merge one."""
        return False

    def survey(self, tensors: Survey) -> Any:
        """Return what the method has to know of the whole model; `tensors` can be gone through repeatedly."""
        return None


class Learner(Protocol):
    """One model of a joint merge: its update, and how it runs. Both may be made anew at every call.

    Attributes:
        name: what the recipe calls it.
    """

    @property
    def name(self) -> str: ...

    def update(self) -> Vector:
        """Return τ = θ − θ_0, float32."""

    def view(self) -> TaskView:
        """Return the model over its inputs, with its own head."""

    def labels(self) -> Tensor | None:
        """Return the classes of the inputs, in the order of the head's outputs; None without labels."""

    def close(self) -> None:
        """Let go of the module that runs, until `view` is called again."""


@dataclass(frozen=True)
class Joint:
    """The models that a method learns from together.

    Attributes:
        base: θ_0 of the tensors that the models run with.
        models: in the recipe's order.
        values: parameter → its value for each of `models`.
        seed: the recipe's.
        progress: is told how far the work is.
    """

    base: Mapping[str, Tensor]
    models: Sequence[Learner]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seed: int = 0
    progress: Progress = quiet


class LearnedMethod(RecipeMethod):
    """A method that reads data, or needs whole models in memory, before it merges.

    Attributes:
        held: (a, b): a + b n float32 copies of the model in memory while it learns from n models.
        all_blocks: whether what all blocks make of a batch waits in memory, for derivatives or for the end
            of the pass; else that of one block.
        needs_labels: whether inputs must have classes.
        batch_size: inputs per pass.
    """

    held: ClassVar[tuple[float, float]] = (4.0, 0.0)
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

    def learn(self, joint: Joint) -> Vector:
        """Return the joint update of the tensors in `joint.base`."""
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


class TaskView(Protocol):
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

    def draws(self, size: int, seed: int) -> Iterator[list[int]]:
        """Yield rows for `batch` without end, each pass over the inputs in a new order."""

    def read(self, backbone: Mapping[str, Tensor], batch: Any) -> Reading:
        """Return features [inputs, width] and, with the task's own head, logits; differentiable."""


@dataclass(frozen=True, eq=False)
class Arrival:
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
    incoming: TaskView
    previous: TaskView | None = None
    seed: int = 0

    @property
    def tuned(self) -> Vector:
        """θ_t."""
        return {name: self.base[name] + change for name, change in self.update.items()}


class ContinualMethod(Method):
    """A method that takes models one after another.

    All tensors are float32 and named as in the base's backbone; heads never take part.

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

    def first(self, arrival: Arrival) -> State:
        """Return the state after the first model; the state is the update itself unless said otherwise."""
        return {"merged": {name: change.clone() for name, change in arrival.update.items()}}

    def add(self, state: State, arrival: Arrival) -> State:
        """Return the state after one more model; `state` is not changed."""
        raise TypeError(f"{type(self).__name__} does not say how it adds")

    def remove(self, state: State, arrival: Arrival) -> State:
        """Return the state as if the model of `arrival` had never come; only where `additive`."""
        raise TypeError(f"{type(self).__name__} cannot take a model out")

    def merged(self, state: State, base: Mapping[str, Tensor]) -> Vector:
        """Return τ_m."""
        return state["merged"]

    def memory(self, sizes: Mapping[str, torch.Size]) -> int:
        """Return the bytes that `add` holds beside the base, τ_t, the state and activations."""
        return int(self.copies * 4 * sum(size.numel() for size in sizes.values()))


@functools.cache
def recipe_method(name: str) -> type[RecipeMethod] | None:
    """Return the method that `merge_method: name` means, None where there is none; imports that one alone.

    Recipes write words with underscores or hyphens, and `regmean++` for `regmean_plus_plus`.
    """
    plain = name.replace("++", "-plus-plus").replace("_", "-")
    if not has_method("merge", plain):
        return None
    kind = method_class("merge", plain)
    return kind if issubclass(kind, RecipeMethod) else None


def recipe_methods() -> tuple[str, ...]:
    """Return the names that `merge_method` can have, as recipes write them; imports no method."""
    names = method_names("merge", facet="merge")
    return tuple(name.replace("-plus-plus", "++").replace("-", "_") for name in names)


def continual_method(name: str, options: Mapping[str, Any] | None = None) -> ContinualMethod:
    """Return the method `name` for models that come one by one, with `options` as its fields."""
    where = "merge start --method"
    kind = method_class("merge", name) if has_method("merge", name) else None
    if kind is None or not issubclass(kind, ContinualMethod):
        raise unknown(name, method_names("merge", facet="add"), kind="method", where=where)
    defaults = parameters_of(kind, "fusion")
    values = parse_fields(kind, options or {}, where=f"{where} {name}")
    for option in values.keys() - defaults.keys():
        raise OptionError(
            f"{name} reads '{option}' in recipes only", where=f"{where} {name}", fix=f"remove -o {option}"
        )
    return kind(**defaults | values)
