"""How a checkpoint is built, from names and config alone, and which layers of which model go where.

A stack is a run of layers; a span is some layers of the output, with their models and parameters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transship.errors import CheckpointError, OptionError
from transship.registry import unknown
from transship.verbs.merge.recipe.read.parameters import Settings
from transship.verbs.merge.recipe.read.schema import ModelEntry, Module, Recipe, Slice
from transship.verbs.merge.recipe.read.sources import ModelReference

_NUMBERED = re.compile(r"(?:(?P<prefix>.*?)\.)?(?P<layer>\d+)\.(?P<rest>.+)")
_DECODER_KEYS = ("decoder_layers", "num_decoder_layers")
_ENCODER_KEYS = ("encoder_layers", "num_encoder_layers", "num_layers")
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "num_blocks")
# what is read before the first layer; all else around the layers comes after the last
_BEFORE = re.compile(
    r"(^|\.)(\w*embed\w*|wte|wpe|shared|patch\w*|cls_token|mask_token|class_embedding|position\w*|pre_?la?y\w*norm"
    r"|conv\d?|stem|tok_embeddings|ln_pre|emb_norm)(\.|$)",
    re.IGNORECASE,
)
HEAD = re.compile(
    r"(^|\.)(classifier|score|qa_outputs|classification_head|head|heads|logits_proj|out_proj_cls)\."
)
# heads that every task shares: their rows are words, not labels
_WORD_HEAD = re.compile(r"(^|\.)(lm_head|cls\.predictions|predictions|embed_out)\.")
ALIASES = {
    "text_decoder": ("language_model", "text_model"),
    "vision_tower": ("visual", "vision_model", "vision_tower"),
    "vision_encoder": ("visual", "vision_model", "vision_tower"),
}


@dataclass(frozen=True)
class Stack:
    """Layers that follow one another.

    Attributes:
        prefix: what stands before the layer's number, such as `model.layers`.
        layers: how many there are.
        module: what a recipe's `modules` calls it.
        keys: where the config says how many there are, as a path of keys; empty where it does not.
    """

    prefix: str
    layers: int
    module: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Position:
    """Where a tensor stands: in a layer of a stack, or around one."""

    module: str
    layer: int | None
    rest: str
    before: bool


@dataclass(frozen=True)
class Layout:
    """The stacks of one model."""

    stacks: tuple[Stack, ...]

    def stack(self, module: str) -> Stack | None:
        """Return the stack that a recipe calls `module`."""
        wanted = (module, *ALIASES.get(module, ()))
        return next((stack for stack in self.stacks if stack.module in wanted), None)

    def position(self, name: str) -> Position:
        """Return where the tensor `name` stands."""
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            prefix = match["prefix"] or ""
            for stack in self.stacks:
                if stack.prefix == prefix:
                    return Position(stack.module, int(match["layer"]), match["rest"], False)
        parts = name.split(".")
        module = next((stack.module for stack in self.stacks if stack.module in parts), None)
        default = self.stacks[0].module if self.stacks else "default"
        return Position(module or default, None, name, _BEFORE.search(name) is not None)


def find_layout(names: Collection[str], config: Mapping[str, Any], where: str) -> Layout:
    """Return the stacks of layers: runs of numbered names, as long as a number of layers in the config.

    Where the config names none, the run with most tensors is the stack.
    """
    runs: dict[str, dict[int, int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            layers = runs.setdefault(match["prefix"] or "", {})
            layers[int(match["layer"])] = layers.get(int(match["layer"]), 0) + 1
    for prefix, layers in list(runs.items()):
        if sorted(layers) != list(range(len(layers))):
            missing = next(layer for layer in range(max(layers) + 1) if layer not in layers)
            # convolutions between activations are numbered with gaps; a transformer's layer has more tensors
            if len(layers) > 2 and min(layers.values()) > 2 and missing < max(layers) - 1:
                raise CheckpointError(
                    f"layer {missing} of {prefix} is missing", where=where, fix="give the whole model"
                )
            del runs[prefix]
    most = max((sum(layers.values()) for layers in runs.values()), default=0)
    # a head of two numbered parts is no stack of two layers
    runs = {prefix: layers for prefix, layers in runs.items() if 4 * sum(layers.values()) > most}
    known = {
        prefix: key for prefix, layers in runs.items() if (key := _config_key(prefix, len(layers), config))
    }
    if not known and runs:
        longest = max(runs, key=lambda prefix: (sum(runs[prefix].values()), prefix))
        known = {longest: ()} if len(runs[longest]) > 1 or sum(runs[longest].values()) > 3 else {}
    modules = _module_names(sorted(known))
    stacks = [Stack(prefix, len(runs[prefix]), modules[prefix], known[prefix]) for prefix in sorted(known)]
    return Layout(tuple(sorted(stacks, key=lambda stack: "decoder" in stack.module)))


def _config_key(prefix: str, layers: int, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the path of the config's key for a run: the most fitting one whose value is its length."""
    parts = prefix.split(".")
    keys = list(_LAYER_KEYS)
    if any("decoder" in part for part in parts):
        keys = [*_DECODER_KEYS, *keys]
    elif any("encoder" in part for part in parts):
        keys = [*_ENCODER_KEYS, *keys]
    sections = [key for key, value in config.items() if key.endswith("_config") and isinstance(value, dict)]
    seeing = any(part.startswith("vis") for part in parts)
    sections.sort(key=lambda section: section.startswith("vision") != seeing)
    for path in [(key,) for key in keys] + [(section, key) for section in sections for key in keys]:
        if config_value(config, path) == layers:
            return path
    return ()


def config_value(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at a path of keys, or None."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _module_names(prefixes: list[str]) -> dict[str, str]:
    """Name each stack by the first part of its prefix that not all of them share."""
    if len(prefixes) < 2:
        return dict.fromkeys(prefixes, "default")
    names: dict[str, str] = {}
    for prefix in prefixes:
        parts = prefix.split(".")
        shared = set.intersection(*(set(other.split(".")) for other in prefixes))
        names[prefix] = next((part for part in parts if part not in shared), prefix)
    taken: dict[str, str] = {}
    for prefix, name in names.items():
        names[prefix] = name if name not in taken.values() else prefix
        taken[prefix] = names[prefix]
    return names


def is_head(name: str) -> bool:
    """Say whether a tensor belongs to a head whose rows are labels."""
    return HEAD.search(name) is not None and _WORD_HEAD.search(name) is None


@dataclass(frozen=True)
class SpanModel:
    """A model of a span: its first layer there, and the settings that the recipe has for it alone."""

    reference: ModelReference
    first: int
    parameters: Settings


@dataclass(frozen=True)
class Span:
    """Some layers of the output.

    Attributes:
        module: the stack's module.
        prefix: what stands before a layer's number; None for a model without layers.
        offset: the number of the first layer in the output.
        layers: how many there are.
        models: what is merged; the base is not among them where it is read apart.
        base: the model that updates are taken against, or None.
        scopes: the settings of the slice, then of its module.
    """

    module: str | None
    prefix: str | None
    offset: int
    layers: int
    models: tuple[SpanModel, ...]
    base: SpanModel | None
    scopes: tuple[Settings, ...]

    @property
    def references(self) -> list[ModelReference]:
        """Return all models, the base last."""
        return [each.reference for each in (*self.models, *([self.base] if self.base else []))]


# model → module → how many layers it has there
Depths = Mapping[ModelReference, Mapping[str, int]]


def find_spans(recipe: Recipe, layout: Layout, depths: Depths) -> list[Span]:
    """Return the spans of all modules."""
    if not layout.stacks:
        if any(not module.whole for module in recipe.modules):
            raise recipe.error("the models have no layers to slice", "use models: instead of slices:")
        module = recipe.modules[0]
        return [_span(recipe, module, module.slices[0], None, 0, depths)]
    spans = []
    for stack, module in _stack_modules(recipe, layout):
        offset = 0
        for part in module.slices:
            spans.append(_span(recipe, module, part, stack, offset, depths))
            offset += spans[-1].layers
    return spans


def _stack_modules(recipe: Recipe, layout: Layout) -> list[tuple[Stack, Module]]:
    first = recipe.modules[0]
    if first.name is None:
        if len(layout.stacks) > 1 and not first.whole:
            names = ", ".join(stack.module for stack in layout.stacks)
            raise recipe.error(
                f"the models have several stacks of layers ({names})",
                "put the slices under modules:, one entry for each",
            )
        return [(stack, first) for stack in layout.stacks]
    known = {stack.module for stack in layout.stacks}
    modules: dict[str, Module] = {}
    for module in recipe.modules:
        stack = layout.stack(str(module.name))
        if stack is None:
            raise unknown(str(module.name), known, kind="module in these models", where=recipe.path)
        modules[stack.module] = module
    if left := sorted(known - modules.keys()):
        raise recipe.error(f"the recipe has no rule for the module {left[0]}", f"add {left[0]}: to modules")
    return [(stack, modules[stack.module]) for stack in layout.stacks]


def _span(
    recipe: Recipe, module: Module, part: Slice, stack: Stack | None, offset: int, depths: Depths
) -> Span:
    base = part.base_model or recipe.base_model
    entries = list(part.sources)
    if module.whole and base is not None and base not in [entry.model for entry in entries]:
        entries.append(ModelEntry(base, None, {}, part.where))
    ranges = [_range(entry, stack, depths) for entry in entries]
    layers = _common_length(entries, ranges, part.where)
    models = [
        SpanModel(entry.model, first, entry.parameters)
        for entry, (first, _) in zip(entries, ranges, strict=True)
    ]
    apart = _base_apart(recipe, base, models, part.where)
    merged = [model for model in models if apart is None or model.reference != apart.reference]
    _check_count(recipe, len(merged), part.where)
    return Span(
        module=stack.module if stack else None,
        prefix=stack.prefix if stack else None,
        offset=offset,
        layers=layers,
        models=tuple(merged),
        base=apart,
        scopes=(part.parameters, module.parameters),
    )


def _range(entry: ModelEntry, stack: Stack | None, depths: Depths) -> tuple[int, int]:
    """Return the layers [first, last) that a model gives."""
    if stack is None:
        return 0, 0
    depth = depths[entry.model].get(stack.module, 0)
    if entry.layers is None:
        return 0, depth
    if entry.layers[1] > depth:
        raise OptionError(
            f"layer_range {list(entry.layers)} ends past the {depth} layers of {entry.model}",
            where=entry.where,
            fix=f"end it at {depth} at the latest",
        )
    return entry.layers


def _common_length(entries: Sequence[ModelEntry], ranges: Sequence[tuple[int, int]], where: str) -> int:
    """Return how many layers every model gives, or refuse models that do not give equally many."""
    lengths = [last - first for first, last in ranges]
    if len(set(lengths)) > 1:
        counts = ", ".join(f"{entry.model} {length}" for entry, length in zip(entries, lengths, strict=True))
        raise OptionError(
            f"the models have different numbers of layers ({counts})",
            where=where,
            fix="use slices: with equal ranges",
        )
    return lengths[0]


def _base_apart(
    recipe: Recipe, base: ModelReference | None, models: Sequence[SpanModel], where: str
) -> SpanModel | None:
    """Return the base where the method reads it apart; it is merged like the others where it does not."""
    required = recipe.kind.base == "required"
    if base is None:
        if required:
            raise recipe.error(
                f"{recipe.method} needs a base", "add base_model: with the model they started from"
            )
        return None
    listed = next((model for model in models if model.reference == base), None)
    if listed is None and required:
        raise OptionError(
            f"the base {base} is not among the sources of a slice",
            where=where,
            fix="list it with its layer_range",
        )
    return None if recipe.kind.base == "input" else listed


def _check_count(recipe: Recipe, count: int, where: str) -> None:
    kind = recipe.kind
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
