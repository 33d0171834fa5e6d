"""One vector per input: what a model says of it in the end."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transship.activations.batches import WINDOW
from transship.activations.models import Batch, LoadedModel, load_model
from transship.activations.tokens import TokenLayout
from transship.errors import DataError, OptionError

Pooling = Literal["mean", "cls", "last", "max", "none"]
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last", "max", "none")


def features(
    model: Any,
    inputs: Iterable[Any],
    *,
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    batch_size: int = 32,
) -> Float[np.ndarray, "inputs width"]:
    """Return the final features of all inputs, in their order, as float32.

    Args:
        model: a LoadedModel, or what `load_model` takes.
        inputs: texts, images or arrays.
        pooling: `mean` over tokens that are no padding, `cls` the first token, `last` the last one, `max`, or
            `none` where the model gives one vector itself. By default what the sentence encoder's own files
            say; else a two-tower model's projection, the last token of a causal model, the class token of a
            vision model that has one, and the mean otherwise.
        normalise: scale to unit length; by default what the sentence encoder's own files say, else no.
        batch_size: inputs per forward pass.
    """
    parts = list(iter_features(model, inputs, pooling=pooling, normalise=normalise, batch_size=batch_size))
    if not parts:
        raise DataError("there are no inputs", where="features", fix="give at least one input")
    return np.concatenate(parts)


def iter_features(
    model: Any,
    inputs: Iterable[Any],
    *,
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    batch_size: int = 32,
) -> Iterator[Float[np.ndarray, "inputs width"]]:
    """Yield the features window by window, in the inputs' order; a window is sorted by length inside."""
    loaded = load_model(model)
    own_pooling, own_normalise = sentence_encoder_settings(loaded.folder)
    pooling = pooling if pooling is not None else own_pooling
    normalise = own_normalise if normalise is None else normalise
    if pooling is not None and pooling not in POOLINGS:
        raise OptionError(
            f"there is no pooling '{pooling}'", where="pooling", fix=f"choose {', '.join(POOLINGS)}"
        )
    stream = iter(inputs)
    while items := list(islice(stream, WINDOW)):
        order = sorted(range(len(items)), key=lambda index: -loaded.length(items[index]))
        made: Any = None
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            rows = _pooled(loaded, loaded.preprocess([items[place] for place in places]), pooling)
            rows = functional.normalize(rows, dim=1) if normalise else rows
            if made is None:
                made = np.empty((len(items), rows.shape[1]), dtype=np.float32)
            made[places] = rows.float().cpu().numpy()
        yield made


def sentence_encoder_settings(folder: Path | None) -> tuple[Pooling | None, bool]:
    """Return (pooling, normalise) from the files of a sentence encoder; (None, False) without any."""
    if folder is None or not (folder / "modules.json").is_file():
        return None, False
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    normalise = any(module.get("type", "").endswith(".Normalize") for module in modules)
    for module in modules:
        if not module.get("type", "").endswith(".Pooling"):
            continue
        file = folder / module.get("path", "") / "config.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        names: dict[str, Pooling] = {
            "pooling_mode_cls_token": "cls",
            "pooling_mode_mean_tokens": "mean",
            "pooling_mode_max_tokens": "max",
            "pooling_mode_lasttoken": "last",
        }
        asked = [short for name, short in names.items() if found.get(name)]
        if len(asked) == 1:
            return asked[0], normalise
        if asked or any(value is True and name.startswith("pooling_mode") for name, value in found.items()):
            raise OptionError(
                "the model joins several poolings",
                where=str(file),
                fix=f"choose one of {', '.join(POOLINGS)}",
            )
    return None, normalise


def _pooled(loaded: LoadedModel, batch: Batch, pooling: Pooling | None) -> Float[Tensor, "inputs width"]:
    with torch.inference_mode():
        return pooled_states(loaded, batch, pooling)


def pooled_states(
    loaded: LoadedModel, batch: Batch, pooling: Pooling | None = None
) -> Float[Tensor, "inputs width"]:
    """Return the pooled last states of one batch, differentiable where gradients are enabled."""
    states, stack = _final_states(loaded, batch)
    if states.dim() == 2:
        return states
    if states.dim() == 4:
        states = states.flatten(2).transpose(1, 2)
    layout = batch.layout(stack)
    pooling = _default_pooling(loaded, layout, states) if pooling is None else pooling
    if pooling == "none":
        raise OptionError(
            "the model gives one vector per token",
            where=loaded.name,
            fix="choose the pooling mean, cls, last or max",
        )
    mask = torch.from_numpy(layout.valid(states.shape[1])).to(states.device)
    if pooling == "cls":
        return states[torch.arange(len(states)), mask.int().argmax(1)]
    if pooling == "last":
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        return states[torch.arange(len(states)), last]
    if pooling == "max":
        return states.masked_fill(~mask[..., None], float("-inf")).amax(1)
    weights = mask.to(states.dtype)
    return torch.einsum("itw,it->iw", states, weights) / weights.sum(1, keepdim=True)


def _default_pooling(loaded: LoadedModel, layout: TokenLayout, states: Tensor) -> Pooling:
    if loaded.causal:
        return "last"
    grid = layout.grid(states.shape[1])
    return "cls" if grid is not None and grid[1] > 0 else "mean"


def _final_states(loaded: LoadedModel, batch: Batch) -> tuple[Tensor, str]:
    """Return the last hidden states (or one vector per input) and the stack that they are of."""
    if loaded.encoder_decoder and "input_ids" in batch.inputs:
        encoder = loaded.model.get_encoder()  # type: ignore[operator]
        made = encoder(input_ids=batch.inputs["input_ids"], attention_mask=batch.inputs["attention_mask"])
        return made.last_hidden_state, "encoder"
    base = getattr(loaded.model, getattr(loaded.model, "base_model_prefix", "") or "-", None)
    runner = loaded
    if isinstance(base, nn.Module):
        runner = LoadedModel(loaded.name, base, loaded.config, device=loaded.device)
    made = runner.run(batch)
    stack = next(iter(batch.layouts), "")
    towers = hasattr(loaded.model, "get_text_features") and hasattr(loaded.model, "get_image_features")
    if towers and not isinstance(made, Tensor):
        if len(batch.layouts) > 1:
            raise DataError(
                "an input of two towers has two features",
                where=loaded.name,
                fix="give texts or images, one at a time",
            )
        return made.pooler_output, stack
    if isinstance(made, Tensor):
        return made, stack
    found = getattr(made, "last_hidden_state", None)
    if found is None:
        found = made[0] if isinstance(made, tuple) else getattr(made, "logits", None)
    if not isinstance(found, Tensor):
        raise DataError(
            f"the model returned a {type(made).__name__} without hidden states",
            where=loaded.name,
            fix="load it without its head",
        )
    return found, stack
