"""RegMean++: RegMean with the inputs that the merged model itself will see."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transship.activations.sites import Tap, watching
from transship.verbs.merge.maths.grams import held, input_grams, linear_maps, shrunk, solved, weighted
from transship.verbs.merge.maths.states import Vector, combined
from transship.verbs.merge.maths.tasks import check_inputs
from transship.verbs.merge.protocol import Joint, LearnedMethod, TaskView

_LAYER = re.compile(r"(.*?\.)?\d+\.")


@dataclass(frozen=True, kw_only=True)
class RegmeanPlusPlus(LearnedMethod):
    """Solve for linear maps as RegMean does, one layer after another, on the inputs the merged layers give.

    Nguyen et al., "RegMean++: Enhancing Effectiveness and Generalization of Regression Mean for Model
    Merging": G_i is taken with all lower layers already merged. Every layer reads the inputs again, so that
    this exists for joint merging alone. Spelt `regmean++` in recipes.

    Attributes:
        weight: c_i.
        keep: the factor of the off-diagonals of G_i.
        ridge: share of the mean diagonal of G_i that is added to it.
        batch_size: inputs per forward pass.
    """

    paper: ClassVar[str] = "Nguyen et al., 2025"
    per_model: ClassVar[tuple[str, ...]] = ("weight",)
    held: ClassVar[tuple[float, float]] = (8.0, 2.0)
    all_blocks: ClassVar[bool] = False

    weight: float = 1.0
    keep: float = 0.9
    ridge: float = 1e-6
    batch_size: int = 16

    def learn(self, joint: Joint) -> Vector:
        """Return RegMean's joint update with G_i under the merged layers below and model i's own layer.

        What lies outside the layers is averaged before the first; the other tensors of a layer after it.
        """
        models = [(model.view(), model.update()) for model in joint.models]
        weights = [float(weight) for weight in joint.values.get("weight", [1.0] * len(models))]
        for task, _ in models:
            check_inputs(task, "regmean++")
        first = models[0][0]
        order = forward_order(first, joint.base)
        inside = {name: layer_of(first.names[name]) for name in joint.base}
        layers = {layer for layer, _ in order}
        updates = [update for _, update in models]
        merged = {name: _mean(updates, weights, name) for name in joint.base if inside[name] not in layers}
        for place, (layer, names) in enumerate(order):
            joint.progress("solving layers", place, len(order))
            merged |= self._layer(joint, models, weights, merged, names)
            for name in joint.base:
                if inside[name] == layer and name not in merged:
                    merged[name] = _mean(updates, weights, name)
        joint.progress("solving layers", len(order), len(order))
        return {name: merged[name] for name in joint.base}

    def _layer(
        self,
        joint: Joint,
        models: Sequence[tuple[TaskView, Vector]],
        weights: Sequence[float],
        merged: Mapping[str, Tensor],
        names: Sequence[str],
    ) -> Vector:
        """Return one layer's linear maps."""
        maps = linear_maps(models[0][0])
        total = None
        for (task, update), weight in zip(models, weights, strict=True):
            backbone = {name: base + merged.get(name, update[name]) for name, base in joint.base.items()}
            own = input_grams(task, backbone, batch_size=self.batch_size, only=names)
            grams = {key: weight * shrunk(gram, self.keep, self.ridge) for key, gram in own.items()}
            state = {"grams": grams, "products": weighted(grams, linear_maps(task), update)}
            total = state if total is None else combined(total, state)
        assert total is not None
        changes = solved(total["grams"], total["products"], maps)
        return {name: changes[name] for name in held(total["grams"], maps)}


def layer_of(path: str) -> str:
    """Return what all modules of one layer's path begin with; the path itself outside numbered layers."""
    match = _LAYER.match(path + ".")
    return match.group() if match is not None else path + "."


def forward_order(task: TaskView, backbone: Mapping[str, Tensor]) -> list[tuple[str, list[str]]]:
    """Return (layer, weights of its linear maps), in the order in which one input passes them."""
    by_path = {linear.path: name for name, linear in linear_maps(task).items()}
    layers: dict[str, list[str]] = {}

    def watch(tap: Tap, tensor: Tensor) -> None:
        names = layers.setdefault(layer_of(tap.path), [])
        if by_path[tap.path] not in names:
            names.append(by_path[tap.path])

    taps = [Tap(path, "input") for path in by_path]
    with torch.no_grad(), watching(task.module, taps, watch):
        task.read(backbone, task.batch([0]))
    return list(layers.items())


def _mean(updates: Sequence[Vector], weights: Sequence[float], name: str) -> Tensor:
    total = torch.zeros_like(updates[0][name])
    for update, weight in zip(updates, weights, strict=True):
        total.add_(update[name], alpha=weight)
    return total / sum(weights)
