"""What a file or folder of weights is, as plain data: what `transship inspect` shows. No tensor is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.lora import Adapter
from transship.checkpoints.update import Update

Kind = Literal["checkpoint", "adapter", "map", "moments", "weights"]


@dataclass(frozen=True)
class Description:
    """What a reference holds.

    Attributes:
        name: the reference as the user gave it.
        kind: a whole checkpoint (with a config), an adapter, a map or Moments of ours, or bare weights.
        architecture: what the config calls the model; empty for other kinds.
        parameters: the number of independent elements.
        nbytes: their bytes.
        dtypes: dtype → elements.
        tensors: the number of independent tensors.
        tied: alias → the tensor whose data it shares.
        settings: what describes it further (width, blocks, rank, …).
    """

    name: str
    kind: Kind
    architecture: str
    parameters: int
    nbytes: int
    dtypes: Mapping[str, int]
    tensors: int
    tied: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)


# config key → how people call it; families spell the same thing differently
_SETTINGS = {
    "width": ("hidden_size", "d_model", "n_embd", "dim", "embed_dim"),
    "blocks": ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depths"),
    "decoder blocks": ("num_decoder_layers",),
    "heads": ("num_attention_heads", "num_heads", "n_head", "n_heads"),
    "key and value heads": ("num_key_value_heads",),
    "inner width": ("intermediate_size", "d_ff", "n_inner", "hidden_dim"),
    "vocabulary": ("vocab_size",),
    "image size": ("image_size",),
    "patch size": ("patch_size",),
}


def describe(checkpoint: Checkpoint) -> Description:
    """Return what an open checkpoint, adapter or file of weights is."""
    dtypes: Counter[str] = Counter()
    for info in checkpoint.tensors.values():
        dtypes[info.dtype] += math.prod(info.shape)
    kind, settings = _kind(checkpoint)
    return Description(
        name=checkpoint.name,
        kind=kind,
        architecture=_architecture(checkpoint) if kind == "checkpoint" else "",
        parameters=checkpoint.parameters,
        nbytes=checkpoint.nbytes,
        dtypes=dict(dtypes.most_common()),
        tensors=len(checkpoint.tensors),
        tied=dict(checkpoint.tied),
        settings=settings,
    )


def describe_update(update: Update) -> list[dict[str, Any]]:
    """Return one row per tensor that an update may change, those that moved most (relatively) first."""
    rows = [
        {
            "tensor": row.name,
            "shape": list(row.shape),
            "norm": row.norm,
            "relative": row.relative,
            "changed": row.changed,
            "largest": row.largest,
            "rank": row.rank,
        }
        for row in update.summary()
    ]
    return sorted(rows, key=lambda row: -row["relative"] if math.isfinite(row["relative"]) else -math.inf)


def _kind(checkpoint: Checkpoint) -> tuple[Kind, dict[str, Any]]:
    if isinstance(checkpoint, Adapter):
        return "adapter", _adapter_settings(checkpoint)
    made_by = checkpoint.metadata.get("format", "")
    if made_by in ("transship.map", "transship.moments"):
        name: Kind = "map" if made_by == "transship.map" else "moments"
        return name, {key: value for key, value in checkpoint.metadata.items() if key != "format"}
    if not checkpoint.config:
        return "weights", {}
    return "checkpoint", _model_settings(checkpoint.config)


def _architecture(checkpoint: Checkpoint) -> str:
    named = checkpoint.config.get("architectures")
    return (
        str(named[0]) if isinstance(named, list) and named else str(checkpoint.config.get("model_type", ""))
    )


def _model_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {"family": config["model_type"]} if "model_type" in config else {}
    for label, keys in _SETTINGS.items():
        values = [config[key] for key in keys if config.get(key) is not None]
        if values:
            settings[label] = values[0]
    for tower in ("text_config", "vision_config"):
        part = config.get(tower)
        if isinstance(part, dict):
            settings |= {
                f"{tower.split('_')[0]} {label}": value for label, value in _model_settings(part).items()
            }
    labels = config.get("id2label")
    if isinstance(labels, dict) and list(labels.values()) != ["LABEL_0", "LABEL_1"]:
        settings["labels"] = len(labels)
    return settings


def _adapter_settings(adapter: Adapter) -> dict[str, Any]:
    config = adapter.config
    settings: dict[str, Any] = {"method": adapter.kind, "base": adapter.base_name or "not named"}
    for label, key in (("rank", "r"), ("alpha", "lora_alpha"), ("targets", "target_modules")):
        if config.get(key) is not None:
            settings[label] = config[key]
    for label, key in (("rsLoRA", "use_rslora"), ("DoRA", "use_dora"), ("saved in full", "modules_to_save")):
        if config.get(key):
            settings[label] = config[key]
    return settings
