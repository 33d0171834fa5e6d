"""The slices of a recipe in normal form: spans of output layers, with their models and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from transship.errors import OptionError
from transship.registry import unknown
from transship.verbs.merge.protocol import RecipeMethod
from transship.verbs.merge.recipe.plan.layout import Layout, Stack
from transship.verbs.merge.recipe.read.parameters import Setting
from transship.verbs.merge.recipe.read.reference import ModelReference
from transship.verbs.merge.recipe.read.schema import Module, Recipe, Slice


@dataclass(frozen=True)
class Span:
    """Some layers of the output.

    Attributes:
        module: the stack's module.
        prefix: what stands before a layer's number; None for a model without layers.
        offset: the number of the first layer in the output.
        layers: how many there are.
        references: the models that are merged; the base is not among them where it is read apart.
        firsts: the first layer in each of them.
        own_parameters: each model's own settings.
        base: the model that updates are taken against, or None.
        base_first: its first layer.
    """

    module: str | None
    prefix: str | None
    offset: int
    layers: int
    references: tuple[ModelReference, ...]
    firsts: tuple[int, ...]
    own_parameters: tuple[dict[str, Setting], ...]
    base: ModelReference | None = None
    base_first: int = 0
    parameters: dict[str, Setting] = field(default_factory=dict)
    module_parameters: dict[str, Setting] = field(default_factory=dict)


def find_spans(
    recipe: Recipe,
    kind: type[RecipeMethod],
    layout: Layout,
    depths: Mapping[ModelReference, Mapping[str, int]],
) -> list[Span]:
    """Return the spans of all modules; `depths` says how many layers each model has in each module."""
    if not layout.stacks:
        if any(not module.whole for module in recipe.modules):
            raise OptionError(
                "the models have no layers to slice", where=recipe.path, fix="use models: instead of slices:"
            )
        module = recipe.modules[0]
        return [_span(recipe, kind, module, module.slices[0], None, 0, depths)]
    spans = []
    for stack, module in _pairs(recipe, layout):
        offset = 0
        for part in module.slices:
            span = _span(recipe, kind, module, part, stack, offset, depths)
            spans.append(span)
            offset += span.layers
    return spans


def _pairs(recipe: Recipe, layout: Layout) -> list[tuple[Stack, Module]]:
    first = recipe.modules[0]
    if first.name is None:
        if len(layout.stacks) > 1 and not first.whole:
            names = ", ".join(stack.module for stack in layout.stacks)
            raise OptionError(
                f"the models have several stacks of layers ({names})",
                where=recipe.path,
                fix="put the slices under modules:, one entry for each",
            )
        return [(stack, first) for stack in layout.stacks]
    known = {stack.module for stack in layout.stacks}
    found: dict[str, tuple[Stack, Module]] = {}
    for module in recipe.modules:
        stack = layout.stack(str(module.name))
        if stack is None:
            raise unknown(str(module.name), known, kind="module in these models", where=recipe.path)
        found[stack.module] = (stack, module)
    if left := sorted(known - found.keys()):
        raise OptionError(
            f"the recipe has no rule for the module {left[0]}",
            where=recipe.path,
            fix=f"add {left[0]}: to modules",
        )
    return [found[stack.module] for stack in layout.stacks]


def _span(
    recipe: Recipe,
    kind: type[RecipeMethod],
    module: Module,
    part: Slice,
    stack: Stack | None,
    offset: int,
    depths: Mapping[ModelReference, Mapping[str, int]],
) -> Span:
    base = part.base_model or recipe.base_model
    entries = [(source.model, source.layers, source.parameters) for source in part.sources]
    if module.whole and base is not None and base not in [entry[0] for entry in entries]:
        entries.append((base, None, {}))
    places = [source.where for source in part.sources]
    places += [part.where] * (len(entries) - len(places))
    ranges = [
        _range(recipe, model, layers, stack, depths, where)
        for (model, layers, _), where in zip(entries, places, strict=True)
    ]
    lengths = {last - first for first, last in ranges}
    if len(lengths) > 1:
        counts = ", ".join(
            f"{entry[0]} {last - first}" for entry, (first, last) in zip(entries, ranges, strict=True)
        )
        raise OptionError(
            f"the models have different numbers of layers ({counts})",
            where=part.where,
            fix="use slices: with equal ranges",
        )
    apart = kind.base != "input" and base is not None
    if kind.base == "required" and base is None:
        raise OptionError(
            f"{recipe.method} needs a base",
            where=recipe.path,
            fix="add base_model: with the model they started from",
        )
    chosen = [place for place, entry in enumerate(entries) if not (apart and entry[0] == base)]
    base_places = [place for place, entry in enumerate(entries) if entry[0] == base]
    if apart and not base_places:
        if kind.base == "required":
            raise OptionError(
                f"the base {base} is not among the sources of a slice",
                where=part.where,
                fix="list it with its layer_range",
            )
        apart = False
    _check_count(recipe, kind, len(chosen), part.where)
    return Span(
        module=stack.module if stack else None,
        prefix=stack.prefix if stack else None,
        offset=offset,
        layers=lengths.pop(),
        references=tuple(entries[place][0] for place in chosen),
        firsts=tuple(ranges[place][0] for place in chosen),
        own_parameters=tuple(entries[place][2] for place in chosen),
        base=base if apart else None,
        base_first=ranges[base_places[0]][0] if apart else 0,
        parameters=part.parameters,
        module_parameters=module.parameters,
    )


def _range(
    recipe: Recipe,
    model: ModelReference,
    layers: tuple[int, int] | None,
    stack: Stack | None,
    depths: Mapping[ModelReference, Mapping[str, int]],
    where: str,
) -> tuple[int, int]:
    if stack is None:
        return 0, 0
    depth = depths[model].get(stack.module, 0)
    if layers is None:
        return 0, depth
    if layers[1] > depth:
        raise OptionError(
            f"layer_range {list(layers)} ends past the {depth} layers of {model}",
            where=where,
            fix=f"end it at {depth} at the latest",
        )
    return layers


def _check_count(recipe: Recipe, kind: type[RecipeMethod], count: int, where: str) -> None:
    beside = " beside the base" if kind.base == "required" else ""
    if count < kind.least:
        raise OptionError(
            f"{recipe.method} takes at least {kind.least} models{beside}, not {count}",
            where=where,
            fix="list more models",
        )
    if kind.most is not None and count > kind.most:
        raise OptionError(
            f"{recipe.method} takes {kind.most} model{'s' if kind.most > 1 else ''}{beside}, not {count}",
            where=where,
            fix="list fewer, or choose another merge_method",
        )
