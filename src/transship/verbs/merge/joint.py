"""Joint merges of models in memory, by any method that a recipe can name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transship.activations.functional import Features
from transship.registry import unknown
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.protocol import Joint, LearnedMethod, TaskView, recipe_method, recipe_methods


@dataclass(frozen=True, eq=False)
class JointTask:
    """One model of a joint merge, in memory.

    Attributes:
        change: τ = θ − θ_0.
        task: how it runs, over its inputs.
        classes: of the inputs, in the order of the head's outputs; None without labels.
    """

    change: Mapping[str, Tensor]
    task: TaskView
    classes: Tensor | None = None

    @property
    def name(self) -> str:
        return self.task.name

    def update(self) -> Vector:
        """Return τ."""
        return dict(self.change)

    def view(self) -> TaskView:
        return self.task

    def labels(self) -> Tensor | None:
        return self.classes

    def close(self) -> None:
        """Keep it: it is in memory anyway."""


def merge_updates_of(
    base: Mapping[str, Tensor],
    models: Sequence[JointTask],
    method: str = "regmean",
    *,
    options: Mapping[str, Any] | None = None,
    values: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
) -> Vector:
    """Return the joint update by any method of recipes.

    Args:
        base: θ_0.
        models: in their order.
        method: as `merge_method` spells it.
        options: the method's fields; those with a value for each model are given to all of them.
        values: field → a value for each model.
        seed: of random methods and draws.
    """
    kind = recipe_method(method)
    if kind is None:
        raise unknown(method, recipe_methods(), kind="merge_method", where="joint")
    chosen = kind(**(options or {}))
    each = {name: [getattr(chosen, name)] * len(models) for name in kind.per_model} | dict(values or {})
    if isinstance(chosen, LearnedMethod):
        return chosen.learn(Joint(base, models, each, seed))
    apart = kind.base != "input"

    def operands() -> Iterator[Operands]:  # one tensor of all models at a time
        return (_operands(name, base, models, each, seed, apart=apart) for name in base)

    survey = chosen.survey(operands) if chosen.wants_survey else None
    update = {}
    for part in operands():
        merged = [np.array(values) for values in chosen.merge(replace(part, survey=survey))]
        whole = np.concatenate(merged) if merged else np.empty(0, np.float32)
        update[part.name] = torch.from_numpy(whole).reshape(part.shape) - base[part.name]
    return update


def _operands(
    name: str,
    base: Mapping[str, Tensor],
    models: Sequence[JointTask],
    values: Mapping[str, Sequence[float]],
    seed: int,
    *,
    apart: bool,
) -> Operands:
    """Return one tensor of all models, and of the base where it is treated apart."""
    origin = base[name].numpy().reshape(-1)
    return Operands(
        name=name,
        shape=tuple(base[name].shape),
        models=[_reader(origin + model.change[name].numpy().reshape(-1)) for model in models],
        base=_reader(origin) if apart else None,
        values=values,
        labels=[model.name for model in models],
        seed=seed,
    )


def _reader(array: Any) -> Any:
    return lambda start, stop: array[start:stop]


def joint(
    base: nn.Module,
    tuned: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    method: str = "regmean",
    *,
    options: Mapping[str, Any] | None = None,
    values: Mapping[str, Sequence[float]] | None = None,
    labels: Mapping[str, Any] | None = None,
    seed: int = 0,
    features: Features | None = None,
    head: str = "head",
    preprocess: Callable[[Any], Any] | None = None,
) -> Vector:
    """Return the joint update of models in memory, as `Fusion` takes them.

    Args:
        base: makes features [inputs, width].
        tuned: task → state dict or module, with `head.weight` and `head.bias`.
        data: task → its raw inputs, for methods that read some.
        method: as `merge_method` spells it.
        options: the method's fields.
        values: field → a value for each model.
        labels: task → classes of its inputs, for methods that need them.
        seed: of random methods and draws.
        features: replaces a call of the module.
        head: what the head's tensors are called.
        preprocess: raw inputs → what the module takes.
    """
    origin = ModuleOrigin(base, features=features, head=head, preprocess=preprocess)
    names: tuple[str, ...] = ()
    models = []
    for name, given in tuned.items():
        arrival = origin.admit(given, name, names)
        names = tuple(arrival.update)
        inputs = (data or {}).get(name)
        classes = (labels or {}).get(name)
        models.append(
            JointTask(
                arrival.update,
                arrival.model.over(getattr(inputs, "inputs", inputs)),
                None if classes is None else torch.as_tensor(np.asarray(classes)),
            )
        )
    return merge_updates_of(origin.backbone(names), models, method, options=options, values=values, seed=seed)
