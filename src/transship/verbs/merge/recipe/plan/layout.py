"""How a checkpoint is built, from names and config alone: stacks of layers, and what lies around them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from transship.errors import CheckpointError

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
class Place:
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

    def place(self, name: str) -> Place:
        """Return where the tensor `name` stands."""
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            prefix = match["prefix"] or ""
            for stack in self.stacks:
                if stack.prefix == prefix:
                    return Place(stack.module, int(match["layer"]), match["rest"], False)
        parts = name.split(".")
        module = next((stack.module for stack in self.stacks if stack.module in parts), None)
        default = self.stacks[0].module if self.stacks else "default"
        return Place(module or default, None, name, _BEFORE.search(name) is not None)


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
            if len(layers) > 2 and min(layers.values()) > 1 and missing < max(layers) - 1:
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
