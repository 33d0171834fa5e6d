"""Adapters in, an adapter out: a weighted sum of low-rank updates is their factors side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship import checkpoints
from transship.checkpoints import Adapter, Checkpoint, Update
from transship.errors import CheckpointError, OptionError
from transship.verbs.merge.methods._protocol import Floats
from transship.verbs.merge.recipe.parameters import resolve
from transship.verbs.merge.recipe.reference import ModelReference
from transship.verbs.merge.recipe.schema import Recipe

LINEAR = ("linear", "task_arithmetic")


@dataclass(frozen=True)
class AdapterMerge:
    """A merge of adapters of one base.

    Attributes:
        weights: tensor → the factor of each adapter that changes it.
    """

    recipe: Recipe
    base: Checkpoint
    adapters: Mapping[ModelReference, Adapter]
    updates: tuple[Update, ...]
    weights: Mapping[str, tuple[float, ...]]

    def update(self) -> Update:
        """Return Σ_i w_i s_i B_i A_i for every tensor, as factors, cut to `lora_rank` where it is given."""
        factors = {}
        for name, weights in self.weights.items():
            ups, downs = [], []
            for update, weight in zip(self.updates, weights, strict=True):
                pair = update.factors(name) if name in update else None
                if pair is None:
                    if name in update:
                        raise CheckpointError(
                            f"tensor '{name}' is saved in full, not as factors",
                            where=self.recipe.path,
                            fix="merge base+adapter models instead, which gives a full model",
                        )
                    continue
                ups.append(pair[0] * np.float32(weight))
                downs.append(pair[1])
            up, down = np.concatenate(ups, axis=1), np.concatenate(downs, axis=0)
            factors[name] = truncated(up, down, self.recipe.lora_rank)
        return Update.from_arrays(factors, base=self.base)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "method": self.recipe.method,
            "models": [str(reference) for reference in self.adapters],
            "base": self.base.name,
            "output": "adapter",
            "tensors": [
                {"name": name, "rank": rank, "weights": list(self.weights[name])}
                for name, rank in self.ranks().items()
            ],
        }

    def text(self) -> str:
        """Return the plan as people read it."""
        ranks = sorted(set(self.ranks().values()))
        return "\n".join(
            [
                f"{self.recipe.method} of the adapters {', '.join(map(str, self.adapters))}",
                f"base      {self.base.name}, which is not read",
                f"tensors   {len(self.weights)} with rank {', '.join(map(str, ranks))}",
            ]
        )

    def ranks(self) -> dict[str, int]:
        """Return the rank of each tensor's output factors."""
        limit = self.recipe.lora_rank
        found = {}
        for name in self.weights:
            pairs = [update.factors(name) for update in self.updates if name in update]
            rank = sum(pair[0].shape[1] for pair in pairs if pair is not None)
            found[name] = min(rank, limit) if limit is not None else rank
        return found


def truncated(up: Floats, down: Floats, rank: int | None) -> tuple[Floats, Floats]:
    """Return factors of the best approximation of up·down with at most `rank` columns (Eckart–Young).

    With QR of both factors only a small matrix is decomposed: up·down = Q_u (R_u R_dᵀ) Q_dᵀ.
    """
    if rank is None or up.shape[1] <= rank:
        return up, down
    left, first = np.linalg.qr(up.astype(np.float64))
    right, second = np.linalg.qr(down.T.astype(np.float64))
    u, values, vt = np.linalg.svd(first @ second.T)
    root = np.sqrt(values[:rank])
    return (
        (left @ (u[:, :rank] * root)).astype(np.float32),
        ((root[:, None] * vt[:rank]) @ right.T).astype(np.float32),
    )


def merge_adapters(
    recipe: Recipe, adapters: Mapping[ModelReference, Adapter], allow_pickle: bool
) -> AdapterMerge:
    """Prepare the merge of a recipe whose models are all adapters."""
    if recipe.method not in LINEAR or len(recipe.modules) != 1 or not recipe.modules[0].whole:
        raise OptionError(
            f"adapters become an adapter by {' or '.join(LINEAR)} over models:, not by {recipe.method}",
            where=recipe.path,
            fix="write base+adapter for each model, which gives a full model",
        )
    sources = recipe.modules[0].slices[0].sources
    base = _base(recipe, adapters[sources[0].model], allow_pickle)
    updates = tuple(Update.from_adapter(adapters[source.model], base) for source in sources)
    names = dict.fromkeys(name for update in updates for name in update.names)
    outer = recipe.modules[0].slices[0].parameters, recipe.modules[0].parameters, recipe.parameters
    weights = {}
    for name in names:
        found = []
        for source in sources:
            value = resolve((source.parameters, *outer), "weight", name, 0.0)
            if value is None:
                raise OptionError(
                    f"{recipe.method} needs weight for {source.model}",
                    where=source.where,
                    fix="add parameters: {weight: …}",
                )
            found.append(float(value))
        weights[name] = _normalised(recipe, found, name)
    return AdapterMerge(recipe, base, adapters, updates, weights)


def _normalised(recipe: Recipe, weights: list[float], name: str) -> tuple[float, ...]:
    default = recipe.method == "linear"
    normalize = resolve((recipe.parameters,), "normalize", name, 0.0)
    scale = float(resolve((recipe.parameters,), "lambda", name, 0.0) or 1.0)
    divisor = sum(weights) if (default if normalize is None else bool(normalize)) else 1.0
    if divisor == 0:
        raise OptionError(
            "the weights sum to 0", where=recipe.path, fix="choose others, or set normalize: false"
        )
    return tuple(scale * weight / divisor for weight in weights)


def _base(recipe: Recipe, adapter: Adapter, allow_pickle: bool) -> Checkpoint:
    named = str(recipe.base_model) if recipe.base_model is not None else adapter.base_name
    if named is None:
        raise OptionError(
            "the adapters do not say which base they belong to", where=recipe.path, fix="add base_model:"
        )
    return checkpoints.open(named, allow_pickle=allow_pickle)
