"""What running a model takes in memory, from its files' headers and config alone: nothing is loaded.

Estimates from above, for `--memory`: weights in the dtype that they run in, and the activations of one batch.
A token of one block keeps about 14 vectors of the hidden and 4 of the inner width, and its attention scores
(kept four times over: scores, probabilities, mask, a copy); training keeps them for all blocks.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.lora import Adapter
from transship.checkpoints.opening import open as open_checkpoint
from transship.errors import CheckpointError
from transship.outside import complete

MOST_TOKENS = 512  # where the config does not say
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim")
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depths", "encoder_layers")
_ITEMSIZE = {"float64": 8, "float16": 2, "bfloat16": 2, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Footprint:
    """Sizes of a model that runs.

    Attributes:
        weights: bytes of its tensors in the dtype that they run in.
        hidden: width of the residual stream.
        inner: width inside of an MLP.
        heads: attention heads.
        layers: blocks.
        tokens: the most tokens of an input.
    """

    weights: int
    hidden: int
    inner: int
    heads: int
    layers: int
    tokens: int

    @classmethod
    def of(cls, reference: Any, *, dtype: str | None = None, **allowed: bool) -> Footprint:
        """Return the sizes of a folder, file, hub id or open checkpoint."""
        if isinstance(reference, Checkpoint):
            return cls._read(reference, dtype)
        with open_checkpoint(reference, **allowed) as opened:
            return cls._read(opened, dtype)

    @classmethod
    def _read(cls, opened: Checkpoint, dtype: str | None) -> Footprint:
        with complete(f"{opened.name}, config.json", kind=CheckpointError):
            return cls._sizes(opened, dtype)

    @classmethod
    def _sizes(cls, opened: Checkpoint, dtype: str | None) -> Footprint:
        elements = sum(math.prod(info.shape) for info in opened.tensors.values())
        if isinstance(opened, Adapter):
            return cls(4 * elements, 0, 0, 0, 0, 0)
        parts = (_part(opened.config, name) for name in ("vision_config", "text_config"))
        config = functools.reduce(operator.or_, parts, dict(opened.config))
        depths = _numbers(config, _LAYERS)
        # a hierarchical model (Swin) doubles its width from stage to stage
        hidden = max(_numbers(config, _WIDTHS), default=1024) * 2 ** max(0, len(depths) - 1)
        inner = max(_numbers(config, _INNER), default=4 * hidden)
        heads = max(_numbers(config, _HEADS), default=max(1, hidden // 64))
        size = _ITEMSIZE.get((dtype or "float32").removeprefix("torch."), 4)
        return cls(size * elements, hidden, inner, heads, max(1, sum(depths)), _tokens(config))

    def forward(self, batch: int, tokens: int | None = None) -> int:
        """Return the bytes of one batch on its way through the model."""
        tokens = min(self.tokens, tokens or self.tokens)
        return batch * tokens * 4 * (14 * self.hidden + 4 * self.inner + 4 * self.heads * tokens)

    def training(self, batch: int, tokens: int | None = None) -> int:
        """Return the bytes of gradients, Adam's two moments, and activations that wait for the way back."""
        return 3 * self.weights + self.layers * self.forward(batch, tokens)


def _part(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return dict(part) if isinstance(part, Mapping) else {}


def _numbers(config: Mapping[str, Any], keys: tuple[str, ...]) -> list[int]:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return [value]
        if isinstance(value, list) and value:
            return [int(size) for size in value]
    return []


def _tokens(config: Mapping[str, Any]) -> int:
    """Return the most tokens: a text's limit, or the patches of an image and one more."""
    size, patch = config.get("image_size"), config.get("patch_size")
    if isinstance(size, int) and isinstance(patch, int) and patch > 0:
        return (size // patch) ** 2 + 1
    limit = _numbers(config, ("max_position_embeddings", "n_positions"))
    return limit[0] if limit else MOST_TOKENS
