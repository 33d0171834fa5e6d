"""Models that run: a checkpoint with its own tokenizer or image processor, or any nn.Module."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transship import parallel
from transship.activations.finding import find_sites
from transship.activations.layout import TokenLayout
from transship.activations.loading import (
    MOST_TOKENS,
    image_size,
    open_model,
    plain_pixels,
    quiet,
    stack_arrays,
    with_channels,
)
from transship.activations.sites import Site
from transship.checkpoints import Checkpoint
from transship.checkpoints.pairing import translation
from transship.checkpoints.renaming import names_in_memory
from transship.errors import DataError

Preprocess = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, eq=False)
class Batch:
    """A model's own view of some inputs.

    Attributes:
        inputs: keyword arguments of the model's forward; under the name "" a single positional one.
        layouts: stack → what its tokens are; a stack that is missing has plain tokens without padding.
        size: inputs in the batch.
    """

    inputs: Mapping[str, Any]
    layouts: Mapping[str, TokenLayout]
    size: int

    def layout(self, stack: str) -> TokenLayout:
        return self.layouts.get(stack) or self.layouts.get("") or TokenLayout(self.size)


@dataclass(eq=False)
class LoadedModel:
    """A model in evaluation mode, and how raw inputs become its batches.

    Attributes:
        name: as the user gave it.
        model: the module.
        config: its transformers config, or None.
        folder: where it was read from, if from disk.
        unused: tensors of the checkpoint that the module does not hold (a head that was not asked for).
        blank: whether its head is only a place for one, and says nothing yet.
    """

    name: str
    model: nn.Module
    config: Any = None
    tokenizer: Any = None
    image_processor: Any = None
    folder: Path | None = None
    unused: tuple[str, ...] = ()
    custom: Preprocess | None = None
    max_length: int = MOST_TOKENS
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    blank: bool = False

    @cached_property
    def sites(self) -> list[Site]:
        return find_sites(self.model, self.config)

    @cached_property
    def causal(self) -> bool:
        """Whether a token's state has read earlier tokens only."""
        if self.config is None or getattr(self.config, "is_encoder_decoder", False):
            return False
        return getattr(self.config, "model_type", "") in _causal_types() or bool(
            getattr(self.config, "is_decoder", False)
        )

    @cached_property
    def encoder_decoder(self) -> bool:
        return bool(getattr(self.config, "is_encoder_decoder", False)) and any(
            site.stack == "decoder" for site in self.sites
        )

    @property
    def kind(self) -> str:
        """What it reads: text, vision, text-vision or array."""
        text = self.tokenizer is not None and not self._hears()
        reads = [word for word, part in (("text", text), ("vision", self._sees())) if part]
        return "-".join(reads) or "array"

    def _sees(self) -> bool:
        return self.image_processor is not None or image_size(self.config) is not None

    def _hears(self) -> bool:
        """Whether it reads sound; what a tokenizer in its folder makes are its answers."""
        return getattr(self.model, "main_input_name", "") in ("input_features", "input_values")

    def preprocess(self, inputs: Sequence[Any]) -> Batch:
        """Return the batch for raw inputs: texts, pairs of texts, images, or (image, text)."""
        if not len(inputs):
            raise DataError("a batch without inputs", where=self.name, fix="give at least one input")
        if self.custom is not None:
            return self._as_batch(self.custom(inputs), len(inputs))
        first = inputs[0]
        if is_text_pair(first):
            return self._texts([left for left, _ in inputs], [other for _, other in inputs])
        if isinstance(first, tuple | list) and len(first) == 2 and isinstance(first[1], str):
            pictures = self._images([image for image, _ in inputs])
            words = self._texts([text for _, text in inputs])
            return Batch(
                {**pictures.inputs, **words.inputs}, {**pictures.layouts, **words.layouts}, len(inputs)
            )
        if isinstance(first, str):
            return self._texts(inputs)
        if self._sees():
            return self._images(inputs)
        if self.kind == "text" and np.asarray(first).dtype.kind == "f":
            raise DataError(
                "the model reads texts, and the inputs are numbers", where=self.name, fix="give texts"
            )
        return self._as_batch(stack_arrays(inputs), len(inputs))

    def run(self, batch: Batch) -> Any:
        """Return the model's output for a batch; a tower of two that has no input does not run."""
        positional = [batch.inputs[""]] if "" in batch.inputs else []
        named = {name: value for name, value in batch.inputs.items() if name}
        forward: Any = self.model
        if hasattr(self.model, "get_text_features") and hasattr(self.model, "get_image_features"):
            if "pixel_values" not in named:
                forward = self.model.get_text_features
            elif "input_ids" not in named:
                forward = self.model.get_image_features
        return forward(*positional, **named)

    def length(self, item: Any) -> int:
        """Return a cheap measure of how much work an input is, to batch like with like."""
        if is_text_pair(item):
            return len(item[0]) + len(item[1])
        return len(item) if isinstance(item, str) else 0

    def _texts(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> Batch:
        """Return the batch of texts; `seconds` are read behind them, as the tokenizer joins two texts."""
        if self._hears():
            raise DataError(
                "the model reads sound, and the inputs are texts",
                where=self.name,
                fix="give a model of texts, or sound as arrays of its features",
            )
        if self.tokenizer is None:
            raise DataError(
                "the model has no tokenizer for texts",
                where=self.name,
                fix="give images or arrays, or a preprocess",
            )
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encoded = self.tokenizer(
                list(texts),
                None if seconds is None else list(seconds),
                padding=True,
                truncation=True,
                max_length=self.max_length,
                return_offsets_mapping=fast,
                return_special_tokens_mask=True,
                return_tensors="np",
            )
        offsets = encoded.pop("offset_mapping") if fast else None
        if offsets is not None and seconds is not None:
            offsets = _one_after_the_other(offsets, encoded, texts)
        special = encoded.pop("special_tokens_mask").astype(bool)
        mask = encoded["attention_mask"].astype(bool)
        if mask.shape[1] == 0 or not mask.any(1).all():
            empty = int(np.flatnonzero(~mask.any(1))[0]) if mask.shape[1] else 0
            raise DataError(
                f"the text {texts[empty]!r} has no tokens",
                where=self.name,
                fix="leave empty texts out of the data",
            )
        inputs = {
            name: torch.from_numpy(np.asarray(value)).to(self.device) for name, value in encoded.items()
        }
        layout = TokenLayout(len(texts), mask, special & mask, offsets, causal=self.causal)
        if not self.encoder_decoder:
            return Batch(inputs, {"text": layout}, len(texts))
        return self._with_decoder(inputs, layout)

    def _with_decoder(self, inputs: Mapping[str, Any], layout: TokenLayout) -> Batch:
        """Let the decoder read the same text, shifted right by its start token.

        Decoder position t has read tokens before t, so it is laid out as token t − 1; position 0 is special.
        It reads as many tokens as the encoder, so an input's last one (in T5 the end mark) is not read,
        whatever its padding.
        """
        start = getattr(self.config, "decoder_start_token_id", None)
        start = start if start is not None else getattr(self.config, "pad_token_id", 0) or 0
        ids = inputs["input_ids"]
        shifted = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)
        assert layout.mask is not None
        first = np.ones((layout.size, 1), dtype=bool)
        mask = layout.mask
        special = layout.special
        if special is not None:
            special = np.concatenate([first, special[:, :-1]], 1)
        offsets = layout.offsets
        if offsets is not None:
            offsets = np.concatenate([np.zeros_like(offsets[:, :1]), offsets[:, :-1]], 1)
        decoder = TokenLayout(layout.size, mask, special, offsets, causal=True)
        named = {
            **inputs,
            "decoder_input_ids": shifted,
            "decoder_attention_mask": torch.from_numpy(mask.astype(np.int64)).to(self.device),
        }
        return Batch(named, {"encoder": layout, "decoder": decoder}, layout.size)

    def _as_batch(self, made: Any, size: int) -> Batch:
        """Return the batch that a preprocess function meant: a Batch, named arguments, or one tensor."""
        if isinstance(made, Batch):
            return made
        if isinstance(made, Tensor):
            return Batch({"": made.to(self.device)}, {}, size)
        if not isinstance(made, Mapping):
            raise DataError(
                f"preprocess returned a {type(made).__name__}",
                where=self.name,
                fix="return a Batch, a dict or a tensor",
            )
        moved = {
            name: value.to(self.device) if isinstance(value, Tensor) else value
            for name, value in made.items()
        }
        mask = moved.get("attention_mask")
        if not isinstance(mask, Tensor):
            return Batch(moved, {"": TokenLayout(size, causal=self.causal)}, size)
        layout = TokenLayout(size, mask.bool().cpu().numpy(), causal=self.causal)
        if self.encoder_decoder and "decoder_input_ids" not in moved:
            return self._with_decoder(moved, layout)
        return Batch(moved, {"": layout}, size)

    def _images(self, images: Sequence[Any]) -> Batch:
        pixels = self._pixels(images).to(self.device, next(self.model.parameters()).dtype)
        vision = getattr(self.config, "vision_config", None) or self.config
        patch = getattr(vision, "patch_size", None)
        grids: tuple[tuple[int, int], ...] = ()
        if patch is not None:
            height, width = (patch, patch) if isinstance(patch, int) else tuple(patch)[-2:]
            grid = pixels.shape[-2] // height, pixels.shape[-1] // width
            stages = len(getattr(vision, "depths", None) or [0])
            grids = (grid,)
            for _ in range(stages - 1):  # merging pairs of rows and columns, an odd one padded
                grid = -(-grid[0] // 2), -(-grid[1] // 2)
                grids = (*grids, grid)
        return Batch({"pixel_values": pixels}, {"vision": TokenLayout(len(images), grids=grids)}, len(images))

    def _pixels(self, images: Sequence[Any]) -> Tensor:
        """Return [inputs, channels, height, width]; arrays of the model's own shape pass unchanged."""
        vision = getattr(self.config, "vision_config", None) or self.config
        channels = getattr(vision, "num_channels", 3)
        ready = [np.asarray(image) for image in images if isinstance(image, np.ndarray | Tensor)]
        floats = len(ready) == len(images) and all(
            image.ndim == 3 and image.shape[0] == channels and image.dtype.kind == "f" for image in ready
        )
        if floats:
            return torch.from_numpy(np.stack(ready)).float()
        if self.image_processor is not None:
            with quiet():
                processed = self.image_processor(
                    [with_channels(image, channels) for image in images], return_tensors="np"
                )
            return torch.from_numpy(np.asarray(processed["pixel_values"]))
        size = image_size(self.config)
        assert size is not None
        return torch.stack([plain_pixels(image, channels, size) for image in images])


def load_model(
    reference: Any,
    *,
    device: str = "auto",
    device_map: Any = None,
    dtype: Any = None,
    head: bool = False,
    trust_remote_code: bool = False,
    preprocess: Preprocess | None = None,
    name: str | None = None,
) -> LoadedModel:
    """Open a model to run.

    Args:
        reference: a folder, a hub id `owner/name[@revision]`, an open Checkpoint, an nn.Module, or a
            LoadedModel (returned as it is).
        device: where it runs.
        device_map: how it is spread over devices instead, as `from_pretrained` takes it: `auto`, a device, or
            module → device, also as JSON. Statistics stay on the device of the layer that they are of.
        dtype: of its weights: a torch dtype, its name, or "auto" for that of the file; float32 by default.
        head: with the task head that the checkpoint has; otherwise the encoder (or decoder) alone.
        trust_remote_code: allow code from the model's repository to run.
        preprocess: for an nn.Module: raw inputs → a Batch, the forward's keyword arguments, or one tensor.
        name: how errors and reports call it.

    A weight that the module has and the checkpoint does not is an error, never a random number; a pooler that
    is not in the file is left out of the module.
    """
    if isinstance(reference, LoadedModel):
        return reference
    parallel.require_device(str(device))
    where = torch.device(parallel.device(device))
    if isinstance(reference, nn.Module):
        module = reference.to(where).eval()
        title = name or type(reference).__name__
        return LoadedModel(title, module, getattr(module, "config", None), custom=preprocess, device=where)
    title = name or str(
        reference if isinstance(reference, str | Path) else getattr(reference, "name", reference)
    )
    opened = open_model(
        reference,
        title,
        dtype=dtype,
        head=head,
        trust_remote_code=trust_remote_code,
        device_map=device_map,
    )
    if opened.device is None:
        opened.model.to(where)
    else:
        where = opened.device
    return LoadedModel(
        title,
        opened.model.eval(),
        opened.config,
        opened.tokenizer,
        opened.image_processor,
        opened.folder,
        opened.unused,
        preprocess,
        opened.max_length,
        where,
    )


def is_text_pair(item: Any) -> bool:
    """Return whether a raw input is two texts that are read together."""
    return isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(text, str) for text in item)


def _one_after_the_other(offsets: np.ndarray, encoded: Any, texts: Sequence[str]) -> np.ndarray:
    """Return offsets [inputs, tokens, 2] that count through both texts of every pair: tokens of the second
    start behind the end of the first, so that no token of one text overlaps with one of the other.
    """
    moved = offsets.copy()
    for row, text in enumerate(texts):
        second = np.array([part == 1 for part in encoded.sequence_ids(row)])
        moved[row, second] += len(text) + 1
    return moved


def _causal_types() -> frozenset[str]:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    # encoders that may also be built as decoders (BERT, RoBERTa) have a masked form, causal models have not
    return frozenset(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(MODEL_FOR_MASKED_LM_MAPPING_NAMES))


def _parameter_names(model: nn.Module, checkpoint: Checkpoint) -> dict[str, str]:
    """Return parameter → tensor of the checkpoint, tied names included.

    What transformers converts in other ways than by renaming (experts that are stacked) has no tensor of its
    own.
    """
    parameters = [name for name, _ in model.named_parameters()]
    renamed = names_in_memory([*checkpoint.tensors, *checkpoint.tied], model)
    return {name: renamed[other] for name, other in translation(parameters, list(renamed)).items()}


def parameter_names(model: LoadedModel, checkpoint: Checkpoint) -> dict[str, str]:
    """Return parameter of the module → independent tensor of its checkpoint."""
    names = _parameter_names(model.model, checkpoint)
    return {name: checkpoint.tied.get(other, other) for name, other in names.items()}
