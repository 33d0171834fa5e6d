"""RegMean++: layers solved for one after another, on what the merged layers below hand them."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from transship.activations.record import Tap, watching
from transship.verbs.merge.fusion.protocol import Seen, Vector
from transship.verbs.merge.learning.grams import held, input_grams, linear_maps, shrunk, solved, weighted
from transship.verbs.merge.learning.needs import check_inputs
from transship.verbs.merge.learning.regmean import RegMeanSums
from transship.verbs.merge.learning.sums import combined
from transship.verbs.merge.methods._learned import Occasion

_LAYER = re.compile(r"(.*?\.)?\d+\.")


def layer_of(path: str) -> str:
    """Return what all modules of one layer's path begin with; the path itself outside numbered layers."""
    found = _LAYER.match(path + ".")
    return found.group() if found is not None else path + "."


def forward_order(seen: Seen, backbone: Mapping[str, Tensor]) -> list[tuple[str, list[str]]]:
    """Return (layer, weights of its linear maps), in the order in which one input passes them."""
    maps = linear_maps(seen)
    by_path = {one.path: name for name, one in maps.items()}
    found: dict[str, list[str]] = {}

    def watch(tap: Tap, tensor: Tensor) -> None:
        names = found.setdefault(layer_of(tap.path), [])
        if by_path[tap.path] not in names:
            names.append(by_path[tap.path])

    taps = [Tap(path, "input") for path in by_path]
    with torch.no_grad(), watching(seen.module, taps, watch):
        seen.read(backbone, seen.batch([0]))
    return list(found.items())


def layer_by_layer(occasion: Occasion, sums: RegMeanSums) -> Vector:
    """Return RegMean's joint update with G_i under the merged layers below and model i's own layer.

    What lies outside the layers is averaged before the first; the other tensors of a layer after it.
    """
    models = [(model.seen(), model.update()) for model in occasion.models]
    weights = [float(weight) for weight in occasion.values.get("weight", [1.0] * len(models))]
    for seen, _ in models:
        check_inputs(seen, "regmean++")
    first = models[0][0]
    order = forward_order(first, occasion.base)
    inside = {name: layer_of(first.names[name]) for name in occasion.base}
    layers = {layer for layer, _ in order}
    updates = [update for _, update in models]
    merged = {name: _mean(updates, weights, name) for name in occasion.base if inside[name] not in layers}
    for place, (layer, names) in enumerate(order):
        occasion.watch(place, len(order), layer)
        merged |= _solve(occasion, models, weights, merged, names, sums)
        for name in occasion.base:
            if inside[name] == layer and name not in merged:
                merged[name] = _mean(updates, weights, name)
    return {name: merged[name] for name in occasion.base}


def _solve(
    occasion: Occasion,
    models: Sequence[tuple[Seen, Vector]],
    weights: Sequence[float],
    merged: Mapping[str, Tensor],
    names: Sequence[str],
    sums: RegMeanSums,
) -> Vector:
    total = None
    for (seen, update), weight in zip(models, weights, strict=True):
        backbone = {name: base + merged.get(name, update[name]) for name, base in occasion.base.items()}
        found = input_grams(seen, backbone, batch_size=sums.batch_size, only=names, inputs=sums.inputs)
        grams = {key: weight * shrunk(gram, sums.keep, sums.ridge) for key, gram in found.items()}
        state = {"grams": grams, "products": weighted(grams, linear_maps(seen), update)}
        total = state if total is None else combined(total, state)
    assert total is not None
    made = solved(total["grams"], total["products"], linear_maps(models[0][0]))
    return {name: made[name] for name in held(total["grams"], linear_maps(models[0][0]))}


def _mean(updates: Sequence[Vector], weights: Sequence[float], name: str) -> Tensor:
    total = torch.zeros_like(updates[0][name])
    for update, weight in zip(updates, weights, strict=True):
        total.add_(update[name], alpha=weight)
    return total / sum(weights)
