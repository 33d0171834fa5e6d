"""Names of tensors: those that transformers gives them in memory, and those that stand for one tensor.

Newer versions of transformers rename some modules.

PEFT names an adapter's factors after the modules in memory, so an adapter and its base on disk may meet only
through these rules. They are asked for when plain names do not meet, since that takes torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from transship.checkpoints.weightfile import TensorInfo

if TYPE_CHECKING:
    from torch import nn


def names_in_memory(names: Collection[str], model: nn.Module) -> dict[str, str]:
    """Return the name in memory → the name in the file, for tensors of a checkpoint of `model`."""
    renamings, _ = _rules(model)
    return {_renamed(name, renamings): name for name in names}


def held_names(names: Collection[str], model: nn.Module) -> set[str]:
    """Return the parameters of `model` that a file's tensors give, those that are put together included.

    A file may name them with the prefix of a headed model or without it.
    """
    renamings, converters = _rules(model)
    held = {name for key in names for name in _converted(_renamed(key, renamings), converters)}
    prefix = getattr(model, "base_model_prefix", "") + "."
    return held | {name.removeprefix(prefix) for name in held} | {prefix + name for name in held}


def empty_model(config: Mapping[str, Any]) -> nn.Module | None:
    """Return the model of a config without weights; None where the config does not tell transformers.

    For names alone: `activations.finding.skeleton`, a room above, refuses where this one falls back to plain
    names.
    """
    import torch
    import transformers
    from transformers import PreTrainedModel

    named = config.get("architectures")
    made_by = getattr(transformers, str(named[0]), None) if isinstance(named, list) and named else None
    if not isinstance(made_by, type) or not issubclass(made_by, PreTrainedModel):
        return None
    if made_by.config_class is None:
        return None
    try:
        settings = made_by.config_class.from_dict(dict(config))
        with torch.device("meta"):
            model: nn.Module = made_by(settings)
    except Exception:  # any config that its class refuses: the plain names are all there is
        return None
    return model


def _rules(model: nn.Module) -> tuple[list[Any], list[Any]]:
    """Return the rules by which transformers renames a file's tensors, and those by which it puts several
    together or takes one apart; none for other modules.
    """
    from transformers import PreTrainedModel
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    if not isinstance(model, PreTrainedModel):
        return [], []
    rules = get_model_conversion_mapping(model)
    return (
        [rule for rule in rules if isinstance(rule, WeightRenaming)],
        [rule for rule in rules if isinstance(rule, WeightConverter)],
    )


def _converted(name: str, converters: list[Any]) -> list[str]:
    """Return the parameters that a renamed tensor has a part in."""
    for rule in converters:
        renamed, pattern = rule.rename_source_key(name)
        if pattern is not None:
            first, *others = rule.target_patterns
            return [renamed, *(renamed.replace(first, other) for other in others)]
    return [name]


def _renamed(name: str, rules: list[Any]) -> str:
    if not rules:
        return name
    from transformers.core_model_loading import rename_source_key

    renamed: str = rename_source_key(name, rules, [])[0]
    return renamed


_TOKEN_TABLES = (
    "shared.weight",
    "decoder.embed_tokens.weight",
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tokens_embed.weight",
)
# an output layer, and the stored name that shows a model to have one
_HEADS = (
    ("cls.predictions.decoder.weight", "cls.predictions.transform.dense.weight"),
    ("predictions.decoder.weight", "predictions.dense.weight"),
    ("lm_head.decoder.weight", "lm_head.dense.weight"),
    ("vocab_projector.weight", "vocab_transform.weight"),
    ("generator_lm_head.weight", "generator_predictions.dense.weight"),
)
_HEAD_BIASES = (
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ("predictions.decoder.bias", "predictions.bias"),
    ("lm_head.decoder.bias", "lm_head.bias"),
)
# heads without a neighbour: the architecture's name has to show that there is one
_PLAIN_HEADS = ("lm_head.weight", "embed_out.weight", "language_model.lm_head.weight")
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "DoubleHeadsModel", "LMModel")


def find_ties(
    tensors: Mapping[str, TensorInfo],
    config: Mapping[str, Any],
    metadata: Mapping[str, str],
    same: Callable[[str, str], bool],
) -> dict[str, str]:
    """Return {alias: the name whose data it shares}; `same` says whether two stored tensors are equal."""
    ties = {
        alias: kept
        for alias, kept in metadata.items()
        if kept in tensors and alias not in tensors and "." in alias
    }
    for alias, kept, expected in (*_encoder_tables(tensors), *_biases(tensors), *_heads(tensors, config)):
        if alias in ties or kept not in tensors or kept in ties:
            continue
        if alias not in tensors:
            if expected:
                ties[alias] = kept
        elif _alike(tensors[alias], tensors[kept]) and same(alias, kept):
            ties[alias] = kept
    return ties


def ties_a_head(tied: Mapping[str, str]) -> bool:
    """Return whether an output layer is among the aliases: then the config has to say so."""
    heads = {*_PLAIN_HEADS, *(head for head, _ in _HEADS)}
    return any(alias in heads for alias in tied)


def _alike(one: TensorInfo, other: TensorInfo) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _encoder_tables(tensors: Mapping[str, TensorInfo]) -> list[tuple[str, str, bool]]:
    """Return (alias, kept, the model surely has the alias) for each side of an encoder-decoder model."""
    tables = []
    for kept in [name for name in tensors if name == "shared.weight" or name.endswith(".shared.weight")]:
        prefix = kept.removesuffix("shared.weight")
        for side in ("encoder.", "decoder."):
            has_side = any(name.startswith(prefix + side) for name in tensors)
            tables.append((f"{prefix}{side}embed_tokens.weight", kept, has_side))
    return tables


def _biases(tensors: Mapping[str, TensorInfo]) -> list[tuple[str, str, bool]]:
    evidence = {head.removesuffix(".weight") + ".bias": shows for head, shows in _HEADS}
    return [(alias, kept, evidence[alias] in tensors) for alias, kept in _HEAD_BIASES]


def _heads(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    if declared_tie(config) is False:
        return []
    table = _token_table(tensors, config)
    if table is None:
        return []
    architectures = config.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    writes = any(name.endswith(_WRITERS) for name in names)
    shown = [(head, table, shows in tensors) for head, shows in _HEADS]
    other_head = any(head in tensors for head in _PLAIN_HEADS) or any(there for _, _, there in shown)
    plain = [(head, table, writes and head == "lm_head.weight" and not other_head) for head in _PLAIN_HEADS]
    return [*shown, *plain]


def declared_tie(config: Mapping[str, Any]) -> bool | None:
    """Return what the config says of its word embeddings; the text part speaks where the whole is silent."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return bool(part["tie_word_embeddings"])
    return None


def _token_table(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> str | None:
    """Return the token embedding: a matrix with one of the usual names, one row per word if known."""
    text = config.get("text_config")
    words = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    for suffix in _TOKEN_TABLES:
        named = [
            name
            for name, info in tensors.items()
            if (name == suffix or name.endswith("." + suffix)) and len(info.shape) == 2
        ]
        fitting = [name for name in named if tensors[name].shape[0] == words] or named
        if fitting:
            return min(fitting, key=lambda name: (len(name), name))
    return None
