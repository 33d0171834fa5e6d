"""Adapters in, an adapter out: a weighted sum of low-rank updates is their factors side by side.

Other methods join the updates tensor by tensor, dense or in a space that the factors span, and what they make
is cut to a rank. Adapters that bring heads of their own (PEFT's `modules_to_save`) give one adapter for each
task: the same factors, and the task's head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np

from transship import checkpoints, report
from transship.checkpoints import Adapter, Checkpoint, Update
from transship.checkpoints.checkpoint import Factors, LowRank
from transship.checkpoints.pairing import translation
from transship.checkpoints.renaming import empty_model, names_in_memory
from transship.errors import CheckpointError
from transship.numerics import TORCH
from transship.verbs.merge.maths.lowrank import SPACES, truncated
from transship.verbs.merge.maths.operands import Floats, Operands, Reader
from transship.verbs.merge.protocol import RecipeMethod, parameters_of, recipe_method, recipe_methods
from transship.verbs.merge.recipe.plan.layout import find_layout, is_head
from transship.verbs.merge.recipe.plan.lineage import check_adapter
from transship.verbs.merge.recipe.read.parameters import layer_position
from transship.verbs.merge.recipe.read.schema import Recipe
from transship.verbs.merge.recipe.read.sources import ModelReference

_FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(?:embedding_)?A(?:\..+)?")


@dataclass(frozen=True)
class AdapterMerge:
    """A merge of adapters of one base.

    Attributes:
        methods: tensor → the method, and its parameters with a value for each adapter.
        modules: for each adapter, the base's tensor → the module's name in it, and its rank.
        heads: adapter → tensors that it brings beside its factors, by their names in the model it is for.
    """

    recipe: Recipe
    base: Checkpoint
    adapters: Mapping[ModelReference, Adapter]
    updates: tuple[Update, ...]
    methods: Mapping[str, tuple[RecipeMethod, Mapping[str, tuple[Any, ...]]]]
    modules: tuple[Mapping[str, tuple[str, int]], ...]
    heads: Mapping[ModelReference, Mapping[str, Callable[[], Floats]]] = field(default_factory=dict)

    def factors(self, name: str) -> Factors:
        """Return up and down of the merged change of a tensor, cut to `lora_rank` where it is given.

        An adapter that leaves the tensor alone takes part with zeros, as base+adapter would.
        """
        method, values = self.methods[name]
        pairs = [update.factors(name) if name in update else None for update in self.updates]
        if method.linear:
            weights = _linear_weights(self.recipe, method, values["weight"])
            present = [
                (pair, weight) for pair, weight in zip(pairs, weights, strict=True) if pair is not None
            ]
            ups = [pair[0] * np.float32(weight) for pair, weight in present]
            up, down = np.concatenate(ups, axis=1), np.concatenate([pair[1] for pair, _ in present], axis=0)
            return truncated(up, down, self.recipe.lora_rank)
        shape = self.base.info(name).shape
        rows, columns = next((len(pair[0]), pair[1].shape[1]) for pair in pairs if pair is not None)
        nothing = np.zeros((rows, 0), np.float32), np.zeros((0, columns), np.float32)
        labels = tuple(map(str, self.adapters))

        def join(arrays: Sequence[Floats]) -> Floats:
            """Return what the method makes of updates, in the shape that they have."""
            zeros = np.zeros(arrays[0].size, np.float32)
            operands = Operands(
                name,
                shape if arrays[0].size == math.prod(shape) else arrays[0].shape,
                [_reader(array) for array in arrays],
                base=_reader(zeros),
                values=values,
                labels=labels,
                seed=self.recipe.seed,
            )
            return np.concatenate([np.array(part) for part in method.merge(operands)]).reshape(
                arrays[0].shape
            )

        space = SPACES[self.recipe.lora_space]
        return space([pair or nothing for pair in pairs], join, self.ranks()[name])

    def update(self) -> Update:
        """Return the merged update, as factors, by the base's names."""
        return Update.from_arrays({name: self.factors(name) for name in self.methods}, base=self.base)

    def check_bases(self) -> None:
        """Refuse adapters whose own base has other weights than this; warn where only the names differ."""
        if self.recipe.compatibility != "off":
            for reference, adapter in self.adapters.items():
                check_adapter(adapter, self.base, where=str(reference), complain=self.recipe.complain)

    def spoken(self, head: ModelReference | None = None) -> Update:
        """Return the merged update by the names of the model that the adapters are for, with one's head.

        They were trained on a model with a head more often than on the base's own class, whose names lack the
        headed one's prefix.
        """
        terms = {}
        for name in self.methods:
            place = next(place for place, names in enumerate(self.modules) if name in names)
            layout = self.updates[place].layout(name)
            low_rank = LowRank(self.base.info(name).shape, _keeping(self.factors(name)), layout)
            terms[f"{self.modules[place][name][0]}.weight"] = ((1.0, low_rank),)
        return Update(terms, base=self.base, added=self.heads.get(head, {}) if head else {})

    @property
    def peak_memory(self) -> int:
        """Return the most anonymous memory that the work takes, estimated from above.

        All factors are held at once, as float32 and as they are written; cutting a rank takes a float64 copy.
        Methods that see entries hold one tensor's dense updates, and its decomposition in float64.
        Names are found in an empty model, with torch.
        """
        elements = sum(adapter.parameters for adapter in self.adapters.values())
        held = TORCH + elements * (4 + 4 + (8 if self.recipe.lora_rank is not None else 0))
        if self.recipe.kind.linear or self.recipe.lora_space == "core":
            return held
        largest = max(math.prod(self.base.info(name).shape) for name in self.methods)
        return held + largest * (4 * (len(self.updates) + 3) + 8 * 4)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "method": self.recipe.method,
            "models": [str(reference) for reference in self.adapters],
            "base": self.base.name,
            "output": "an adapter for each task" if self.heads else "adapter",
            "heads": {str(reference): list(head) for reference, head in self.heads.items()},
            "tensors": [
                {
                    "name": name,
                    "rank": rank,
                    **{field: list(each) for field, each in self.methods[name][1].items()},
                }
                for name, rank in self.ranks().items()
            ],
        }

    def page(self) -> report.Page:
        """Return what `transship merge plan` says."""
        names = ", ".join(map(str, self.adapters))
        return report.Page(f"{self.recipe.method} of the adapters {names}", sections=self.sections())

    def sections(self) -> list[report.Section]:
        ranks = self.ranks()
        lines = {
            "base": f"{self.base.name}, which is not read",
            "tensors": f"{len(ranks)} with rank {', '.join(map(str, sorted(set(ranks.values()))))}",
        }
        blocks = [report.Facts(self.facts, shown=False), report.Facts(lines, in_json=False)]
        heads = [[str(reference), ", ".join(head)] for reference, head in self.heads.items()]
        sections = [report.Section("", blocks)]
        if heads:
            sections.append(report.Section("Tasks", [report.Table(["adapter", "head of its own"], heads)]))
        table = report.Table(["tensor", "rank"], list(ranks.items()))
        return [*sections, report.Section("Tensors", [table], detail=True)]

    def ranks(self) -> dict[str, int]:
        """Return the rank of each tensor's output factors."""
        limit = self.recipe.lora_rank
        ranks = {
            name: sum(names[name][1] for names in self.modules if name in names) for name in self.methods
        }
        if not self.recipe.kind.linear:  # a sum keeps its factors as they are, even where they are too many
            shapes = {name: self.base.info(name).shape for name in ranks}
            ranks = {
                name: min(rank, shapes[name][0], math.prod(shapes[name][1:])) for name, rank in ranks.items()
            }
        return {name: rank if limit is None else min(rank, limit) for name, rank in ranks.items()}


def merge_adapters(
    recipe: Recipe, adapters: Mapping[ModelReference, Adapter], allow_pickle: bool
) -> AdapterMerge:
    """Prepare the merge of a recipe whose models are all adapters."""
    kind = recipe.kind
    if not (kind.linear or kind.of_updates) or len(recipe.modules) != 1 or not recipe.modules[0].whole:
        able = [name for name in recipe_methods() if _makes_adapters(name)]
        raise recipe.error(
            f"adapters become an adapter by {', '.join(able)} over models:, not by {recipe.method}",
            "write base+adapter for each model, which gives a full model",
        )
    if kind.linear and recipe.lora_space != "full":
        raise recipe.error(
            f"{recipe.method} is a sum, which is the same in every space",
            "remove lora_space, or merge by ties",
        )
    sources = recipe.modules[0].slices[0].sources
    _check_bases(recipe, adapters)
    base = _base(recipe, adapters[sources[0].model], allow_pickle)
    updates = tuple(Update.from_adapter(adapters[source.model], base) for source in sources)
    modules = tuple(_modules(adapters[source.model], base) for source in sources)
    heads = {}
    for source, update, names in zip(sources, updates, modules, strict=True):
        if head := _head(recipe, base, update, names):
            heads[source.model] = head
    return AdapterMerge(recipe, base, adapters, updates, _methods(recipe, base, modules), modules, heads)


def _makes_adapters(name: str) -> bool:
    kind = recipe_method(name)
    return kind is not None and (kind.linear or kind.of_updates)


def _methods(
    recipe: Recipe, base: Checkpoint, modules: tuple[Mapping[str, tuple[str, int]], ...]
) -> dict[str, tuple[RecipeMethod, dict[str, tuple[Any, ...]]]]:
    """Return each tensor's method, and the parameters that each adapter has its own value of."""
    whole = recipe.modules[0].slices[0]
    outer = whole.parameters, recipe.modules[0].parameters
    layout = find_layout(list(base.tensors), base.config, base.name)
    depths = {stack.module: stack.layers for stack in layout.stacks}
    defaults = parameters_of(recipe.kind, "recipe")
    methods = {}
    for name in dict.fromkeys(name for names in modules for name in names):
        place = layout.position(name)
        position = 0.0 if place.layer is None else layer_position(place.layer, depths[place.module])
        values: dict[str, tuple[Any, ...]] = {}
        for field_name in recipe.kind.per_model:
            own = [
                recipe.value(field_name, (entry.parameters, *outer), name, position, entry.model)
                for entry in whole.sources
            ]
            values[field_name] = tuple(defaults[field_name] if value is None else value for value in own)
        shared = {
            field_name: value
            for field_name in defaults
            if field_name not in recipe.kind.per_model
            and (value := recipe.value(field_name, outer, name, position)) is not None
        }
        methods[name] = recipe.kind(**shared), values
        if methods[name][0].wants_survey:
            raise recipe.error(
                f"{recipe.method} looks at whole models with these parameters",
                "write base+adapter for each model, or trim tensor by tensor",
            )
        if recipe.kind.linear:
            _linear_weights(recipe, methods[name][0], values["weight"])
    return methods


def _linear_weights(recipe: Recipe, method: RecipeMethod, weights: Sequence[float]) -> tuple[float, ...]:
    """Return the factor of each adapter in a sum, by the method's `normalize` and `scale`."""
    divisor = sum(weights) if getattr(method, "normalize", False) else 1.0
    if divisor == 0:
        raise recipe.error("the weights sum to 0", "choose others, or set normalize: false")
    scale = getattr(method, "scale", 1.0)
    return tuple(scale * float(weight) / divisor for weight in weights)


def _reader(values: Floats) -> Reader:
    flat = values.reshape(-1)
    return lambda start, stop: flat[start:stop]


def _modules(adapter: Adapter, base: Checkpoint) -> dict[str, tuple[str, int]]:
    """Return the base's tensor → what the adapter calls its module, and the rank; no weights are read."""
    ranks = {
        f"{match[1]}.weight": info.shape[0]
        for name, info in adapter.tensors.items()
        if (match := _FACTOR.fullmatch(name))
    }
    stored = [*base.tensors, *base.tied]
    own_names = translation(list(ranks), stored)
    model = empty_model(base.config) if len(own_names) < len(ranks) else None
    if model is not None:  # newer versions of transformers rename modules in memory, and PEFT follows them
        renamed = names_in_memory(stored, model)
        others = {own: renamed[other] for own, other in translation(list(ranks), list(renamed)).items()}
        own_names = max(own_names, others, key=len)
    return {name: (own.removesuffix(".weight"), ranks[own]) for own, name in own_names.items()}


def _head(
    recipe: Recipe, base: Checkpoint, update: Update, modules: Mapping[str, tuple[str, int]]
) -> dict[str, Callable[[], Floats]]:
    """Return what an adapter holds beside its factors; changes in full of what the base has are no head."""
    head: dict[str, Callable[[], Floats]] = dict(update.added)
    for name in update.names:
        if name in modules:
            continue
        if not is_head(name):
            raise CheckpointError(
                f"tensor '{name}' is saved in full, not as factors",
                where=recipe.path,
                fix="merge base+adapter models instead, which gives a full model",
            )
        head[name] = _full(base, update, name)
    return head


def _full(base: Checkpoint, update: Update, name: str) -> Callable[[], Floats]:
    return lambda: base.floats(name).reshape(base.info(name).shape) + update.dense(name)


def _keeping(factors: Factors) -> Callable[[], Factors]:
    return lambda: factors


def _check_bases(recipe: Recipe, adapters: Mapping[ModelReference, Adapter]) -> None:
    """Refuse adapters that say they belong to different bases, by the last part of the bases' names."""
    named = {
        reference: PurePath(adapter.base_name).name
        for reference, adapter in adapters.items()
        if adapter.base_name
    }
    first = next(iter(named), None)
    for reference, name in named.items():
        if first is not None and name != named[first]:
            recipe.complain(
                f"it was trained on {name}, and {first} on {named[first]}",
                str(reference),
                "merge adapters of one base",
            )


def _base(recipe: Recipe, adapter: Adapter, allow_pickle: bool) -> Checkpoint:
    named = str(recipe.base_model) if recipe.base_model is not None else adapter.base_name
    if named is None:
        raise recipe.error("the adapters do not say which base they belong to", "add base_model:")
    return checkpoints.open(named, allow_pickle=allow_pickle)
