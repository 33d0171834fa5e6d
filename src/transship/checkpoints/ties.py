"""Which names share one tensor: tied weights, found from names, shapes and the config.

A name is an alias of a stored tensor when

1. the file says so: `safetensors.torch.save_model` notes each name that it left out beside the one it kept;
2. it is the token table under another name: an encoder's or decoder's own `embed_tokens` beside `shared`;
3. it is the output layer of a language model, its config does not untie it (`tie_word_embeddings: false`),
   and the file leaves it out though a stored neighbour or the named architecture shows that the model has
   one;
4. it is a head's bias under both of its two names;

and, where the file holds both names, only if their bytes are equal: a fine-tune may have parted them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transship.checkpoints.weightfile import TensorInfo

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
    found = []
    for kept in [name for name in tensors if name == "shared.weight" or name.endswith(".shared.weight")]:
        prefix = kept.removesuffix("shared.weight")
        for side in ("encoder.", "decoder."):
            has_side = any(name.startswith(prefix + side) for name in tensors)
            found.append((f"{prefix}{side}embed_tokens.weight", kept, has_side))
    return found


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
        found = [
            name
            for name, info in tensors.items()
            if (name == suffix or name.endswith("." + suffix)) and len(info.shape) == 2
        ]
        fitting = [name for name in found if tensors[name].shape[0] == words] or found
        if fitting:
            return min(fitting, key=lambda name: (len(name), name))
    return None
