"""PEFT LoRA adapters: what they add to a base, as low-rank terms; what is no such sum is refused.

With A [rank, in], B [out, rank] and scale s = α / rank (α / √rank for rsLoRA) the change of a linear weight
[out, in] is s B A (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1); a
transposed (Conv1D) weight [in, out] and an embedding [words, width] change by its transpose.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from transship.checkpoints.checkpoint import (
    Checkpoint,
    DenseChange,
    Factors,
    Layout,
    LowRank,
    TensorDifference,
    Term,
)
from transship.checkpoints.dtypes import CHUNK, Array
from transship.checkpoints.pairing import translation
from transship.checkpoints.renaming import empty_model, names_in_memory
from transship.checkpoints.weightfile import quote
from transship.errors import CheckpointError
from transship.numerics import chunks

_LINEAR = re.compile(r"(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
_EMBEDDING = re.compile(r"(.+)\.lora_embedding_([AB])(?:\.[^.]+)?")
_BIAS = re.compile(r"(.+)\.lora_B(?:\.[^.]+)?\.bias")
_SAVED = re.compile(r"(.+?)\.modules_to_save\.[^.]+\.(.+)")
_INTRICATE = re.compile(r"\)[*+?{]")  # a repeated group: a hostile one would take for ever
_MERGE_FIRST = "merge it into its base with peft (merge_and_unload), save that, and give the saved folder"
# settings that do not change what the stored factors mean
_HARMLESS = frozenset(
    [
        "task_type",
        "peft_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "r",
        "target_modules",
        "exclude_modules",
        "lora_alpha",
        "lora_dropout",
        "lora_bias",
        "fan_in_fan_out",
        "use_rslora",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
        "rank_pattern",
        "alpha_pattern",
        "megatron_core",
        "megatron_config",
        "qalora_group_size",
        "runtime_config",
        "eva_config",
        "ensure_weight_tying",
    ]
)
_NAMED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "loftq_config": "LoftQ",
    "layer_replication": "layer replication",
    "trainable_token_indices": "trainable tokens",
    "alora_invocation_tokens": "activated LoRA",
    "target_parameters": "target_parameters",
}
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")  # those that leave the base as it was
_TABLE_NAMES = re.compile(r"(^|\.)(embed_\w+|\w*embeddings?|wte|wpe|shared)\.weight$")
_TRANSPOSED_MODELS = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "gpt-sw3", "ctrl"})
_TRANSPOSED_NAMES = re.compile(r"\.(c_attn|c_proj|c_fc|q_attn)\.weight$")


class Adapter(Checkpoint):
    """A PEFT adapter folder: its tensors are factors, its `config` is `adapter_config.json`."""

    @property
    def base_name(self) -> str | None:
        """Return the base that the adapter says it was trained on."""
        base = self.config.get("base_model_name_or_path")
        return base if isinstance(base, str) else None

    @property
    def kind(self) -> str:
        """Return PEFT's name of the method: LORA, LOKR, IA3 …"""
        return str(self.config.get("peft_type", "unknown")).upper()


@dataclass
class _Module:
    parts: dict[str, str] = field(default_factory=dict)  # A, B → tensor name
    embedding: bool = False
    bias: str | None = None  # the name of what B adds to the layer's own bias


def adapter_terms(
    adapter: Checkpoint, base: Checkpoint
) -> tuple[dict[str, tuple[Term, ...]], dict[str, Callable[[], Array]]]:
    """Return the change of each base tensor, and the tensors that the base has not (a new head)."""
    _check_settings(adapter)
    modules, saved, copies = _sort(adapter)
    biases = {f"{module}.bias": held.bias for module, held in modules.items() if held.bias is not None}
    wanted = [*(f"{module}.weight" for module in modules), *biases, *saved, *copies]
    convert = _names_in(base, wanted)
    terms: dict[str, tuple[Term, ...]] = {}
    for module, factors in modules.items():
        name = convert.get(f"{module}.weight")
        if name is None:
            what = f"it changes {quote(module)}, which {base.name} does not have"
            _refuse(adapter, what, fix=_other_base(adapter))
        _check_tie(adapter, base, name)
        terms[name] = (_low_rank(adapter, base, module, factors, name),)
    for plain, held in biases.items():
        if plain not in convert:
            what = f"it changes {quote(plain)}, which {base.name} does not have"
            _refuse(adapter, what, fix=_other_base(adapter))
        _check_shape(adapter, base, held, convert[plain])
        terms[convert[plain]] = (_bias(adapter, plain.removesuffix(".bias"), held),)
    added: dict[str, Callable[[], Array]] = {}
    for plain, held in (saved | copies).items():
        name = convert.get(plain)
        if name is None:
            added[plain] = _reading(adapter, held)
            continue
        if name in base.tied and adapter.config.get("ensure_weight_tying") is True:
            continue  # a copy of the tensor that it is tied to
        _check_tie(adapter, base, name)
        _check_shape(adapter, base, held, name)
        # PEFT keeps a copy of an adapted token table beside its factors: most often just the base's own
        if plain in saved or not _equal(adapter, held, base, name):
            terms[name] = (*terms.get(name, ()), TensorDifference(base, name, adapter, held))
    return terms, added


def _names_in(base: Checkpoint, wanted: list[str]) -> dict[str, str]:
    """Return the adapter's name → the base's tensor: by plain names, else by the modules' names in memory."""
    stored = [*base.tensors, *base.tied]
    plain = translation(wanted, stored)
    model = empty_model(base.config) if len(plain) < len(wanted) else None
    if model is None:
        return plain
    renamed = names_in_memory(stored, model)
    in_memory = {name: renamed[other] for name, other in translation(wanted, list(renamed)).items()}
    return max(plain, in_memory, key=len)


def default_layout(name: str, base: Checkpoint | None) -> Layout:
    """Return how a module most likely holds the weight `name`, from its name and the base's `model_type`."""
    if _TABLE_NAMES.search(name):
        return "embedding"
    transposed = base is not None and base.config.get("model_type") in _TRANSPOSED_MODELS
    return "conv1d" if transposed and _TRANSPOSED_NAMES.search(name) else "linear"


def _check_settings(adapter: Checkpoint) -> None:
    """Refuse by name every kind of adapter that is not a plain sum of low-rank products."""
    config = adapter.config
    kind = str(config.get("peft_type", "unknown")).upper()
    if kind != "LORA":
        _refuse(adapter, f"it is a {kind} adapter, not LoRA")
    if config.get("bias", "none") != "none":
        _refuse(adapter, f"it also changes biases (bias: {quote(str(config['bias']))})")
    start = config.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        _refuse(adapter, f"it starts from a changed base (init_lora_weights: {quote(str(start))})")
    for key, value in config.items():
        if value and key not in _HARMLESS and key not in ("bias", "init_lora_weights"):
            name = _NAMED.get(key, f"{quote(key)}, which is not known here,")
            _refuse(adapter, f"it uses {name} and is no plain low-rank sum")


def _sort(adapter: Checkpoint) -> tuple[dict[str, _Module], dict[str, str], dict[str, str]]:
    """Return the factor pairs by module, and {plain name: tensor name} of what is saved in full.

    The third part are copies of adapted layers, which a base's own tensors should equal.
    """
    modules: dict[str, _Module] = {}
    saved: dict[str, str] = {}
    copies: dict[str, str] = {}
    for name in adapter.tensors:
        plain = name.removeprefix("base_model.model.")
        linear, embedding = _LINEAR.fullmatch(plain), _EMBEDDING.fullmatch(plain)
        if match := linear or embedding:
            module = modules.setdefault(match[1], _Module(embedding=embedding is not None))
            if match[2] in module.parts or module.embedding != (embedding is not None):
                _refuse(
                    adapter,
                    f"it has two factors {match[2]} for {quote(match[1])}",
                    fix="save the adapter again",
                )
            module.parts[match[2]] = name
        elif match := _BIAS.fullmatch(plain):
            modules.setdefault(match[1], _Module()).bias = name
        elif ".lora_" in plain or ".token_adapter." in plain or ".original_module." in plain:
            what = "DoRA" if "magnitude" in plain else "a tensor that is no factor"
            _refuse(adapter, f"it uses {what} ({quote(name)}) and is no plain low-rank sum")
        elif ".base_layer." in plain:
            copies[plain.replace(".base_layer.", ".")] = name
        else:
            held = _SAVED.fullmatch(plain)
            saved[f"{held[1]}.{held[2]}" if held else plain] = name
    for path, module in modules.items():
        if set(module.parts) != {"A", "B"}:
            _refuse(
                adapter,
                f"only one of the two factors of {quote(path)} is there",
                fix="save the adapter again",
            )
    if not modules and not saved:
        _refuse(adapter, "it holds no tensors", fix="save the adapter again")
    return modules, saved, copies


def _check_tie(adapter: Checkpoint, base: Checkpoint, name: str) -> None:
    """Refuse to change one of two tied tensors: on the tied base the change would reach the other too."""
    partner = base.tied.get(name) or next((alias for alias, kept in base.tied.items() if kept == name), None)
    if partner is None or (adapter.config.get("ensure_weight_tying") is True and name in base.tensors):
        return
    _refuse(adapter, f"it changes {quote(name)} alone, which {base.name} ties to {quote(partner)}")


def _check_shape(adapter: Checkpoint, base: Checkpoint, held: str, name: str) -> None:
    given, there = list(adapter.info(held).shape), list(base.info(name).shape)
    if given != there:
        what = f"it replaces {quote(name)} by a {given} tensor, and {base.name} has {there}"
        _refuse(adapter, what, fix=_other_base(adapter))


def _equal(adapter: Checkpoint, held: str, base: Checkpoint, name: str) -> bool:
    return all(
        np.array_equal(adapter.chunk(held, part.start, part.stop), base.chunk(name, part.start, part.stop))
        for part in chunks(base.info(name).size, CHUNK)
    )


def _low_rank(adapter: Checkpoint, base: Checkpoint, module: str, found: _Module, name: str) -> LowRank:
    down_name, up_name = found.parts["A"], found.parts["B"]
    down, up, shape = adapter.info(down_name).shape, adapter.info(up_name).shape, base.info(name).shape
    rank = _for_module(adapter, "rank_pattern", module, adapter.config.get("r", 8))
    alpha = _for_module(adapter, "alpha_pattern", module, adapter.config.get("lora_alpha", 8))
    if len(down) < 2 or len(up) < 2 or down[0] != up[1] or down[0] != rank or math.prod(up[2:]) != 1:
        _refuse(
            adapter,
            f"the factors of {quote(module)} have shapes {list(down)} and {list(up)}, not rank {rank:g}",
            fix="save the adapter again: its settings and tensors do not belong together",
        )
    layout = _layout(adapter, found, up[0], down[1:], shape)
    if layout is None:
        _refuse(
            adapter,
            f"its change of {quote(module)} is {[up[0], *down[1:]]}, and {base.name} has {list(shape)} there",
            fix=_other_base(adapter),
        )
    scale = _scale(adapter, rank, alpha)

    def load() -> Factors:
        a = adapter.floats(down_name).reshape(down[0], -1)
        b = adapter.floats(up_name).reshape(up[0], -1) * scale
        return (b, a) if layout == "linear" else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))

    return LowRank(shape, load, layout)


def _scale(adapter: Checkpoint, rank: float, alpha: float) -> np.float32:
    return np.float32(alpha / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank))


def _bias(adapter: Checkpoint, module: str, held: str) -> DenseChange:
    rank = _for_module(adapter, "rank_pattern", module, adapter.config.get("r", 8))
    alpha = _for_module(adapter, "alpha_pattern", module, adapter.config.get("lora_alpha", 8))
    return DenseChange(adapter.info(held).shape, lambda: adapter.floats(held) * _scale(adapter, rank, alpha))


def _layout(
    adapter: Checkpoint, found: _Module, out: int, inner: tuple[int, ...], shape: tuple[int, ...]
) -> Layout | None:
    """Return the layout under which the factors fit `shape`; a square matrix is as `fan_in_fan_out` says."""
    if found.embedding:
        return "embedding" if shape == (*inner, out) else None
    upright, transposed = shape == (out, *inner), len(inner) == 1 and shape == (*inner, out)
    if upright and transposed:
        return "conv1d" if adapter.config.get("fan_in_fan_out") is True else "linear"
    if upright:
        return "linear"
    return "conv1d" if transposed else None


def _for_module(adapter: Checkpoint, key: str, module: str, default: Any) -> float:
    """Return the value of the first pattern that fits the module's name, or the default, as PEFT finds it."""
    patterns = adapter.config.get(key) or {}
    value = default
    if not isinstance(patterns, Mapping):
        _refuse(adapter, f"its {key} is no table", fix="save the adapter again")
    for pattern, given in patterns.items():
        if len(pattern) > 500 or _INTRICATE.search(pattern) or len(re.findall(r"[*+?{]", pattern)) > 3:
            what = f"its {key} has a pattern too intricate to trust, {quote(pattern)}"
            _refuse(adapter, what, fix="write plain module names there")
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                value = given
                break
        except re.error:
            _refuse(
                adapter, f"its {key} has the invalid pattern {quote(pattern)}", fix="save the adapter again"
            )
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value <= 0
    ):
        _refuse(
            adapter, f"its {key} gives {quote(str(value))} for {quote(module)}", fix="save the adapter again"
        )
    return float(value)


def _other_base(adapter: Checkpoint) -> str:
    named = adapter.config.get("base_model_name_or_path")
    hint = f" ({quote(named)})" if isinstance(named, str) and named else ""
    return f"give the base that it was trained on{hint}"


def _reading(adapter: Checkpoint, name: str) -> Callable[[], Array]:
    return lambda: adapter.read(name)


def _refuse(adapter: Checkpoint, what: str, *, fix: str = _MERGE_FIRST) -> NoReturn:
    raise CheckpointError(what, where=adapter.name, fix=fix)
