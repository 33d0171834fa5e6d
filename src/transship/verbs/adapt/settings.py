"""What a fit may be told. One dataclass.

The estimator's parameters, the command line's options, the card's table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from transship import parallel
from transship.errors import OptionError

# what the command line sets otherwise than the estimator: it runs the raw baselines, and builds on the best
COMMAND: Mapping[str, Any] = {"base": "auto"}


@dataclass(eq=False, repr=False, kw_only=True)
class Settings:
    """The parameters of an adaptation.

    Attributes:
        backbone: a model folder, a name in the model folders, a hub id, or a transformers encoder.
        task: classification, multilabel, regression, dense; `auto` reads it off the targets.
        method: the name of a method; see `transship methods adapt`.
        method_options: the method's own parameters.
        proxy: labelled data of the backbone's modality: a reference, a Dataset, `auto`, or None.
        proxy_items: the most of them, balanced over classes.
        kind: what inputs are: series, grid, tokens (ids), tabular; `auto` goes by the number of axes.
        tokens: the most tokens that a series (or a field before a text backbone) is cut into.
        patch: samples per token, or the side of a patch; None goes by `tokens`.
        stem: `patch`: kernels as long as a patch; `multiscale`: longer ones beside them; `rocket`: random
            convolutions of the series, pooled in every patch.
        missing: `refuse` NaN by row, or `fill` them with the channel's mean.
        predictor: `linear` head, `transport` (Λ over source labels), or `pooled` (dense, no weights).
        base: a raw model that the network corrects: none, rocket, ridge, logistic, or `auto` (the best).
        freeze_embedder: stage 2 leaves the embedder as stage 1 made it.
        lora_rank: above 0, the body learns through LoRA factors of that rank.
        omega: ω, or `grid` for the smallest that keeps the source head's accuracy.
        loss: of stage 2; None for the task's usual one.
        metric: by which validation chooses; None for the task's usual one.
        epochs: passes over the training rows in stage 2; `auto` goes by their number.
        steps: optimiser steps of stage 2, instead of epochs.
        batch_size: rows per micro-batch; `auto` goes by the number of rows.
        accumulation: micro-batches per step.
        learning_rate: of the body.
        embedder_factor: embedder and head learn so many times as fast.
        weight_decay: AdamW's.
        warmup: share of the steps in which the rate rises.
        clip: largest gradient norm.
        patience: validations without a better one before stage 2 stops; None runs to the end.
        select: keep the weights of the best validation, or the last ones; these are validated at the end
            only, unless there is `patience`.
        validation: share of the rows to choose by, or a pair (X, y).
        log_every: steps between two rows of the stage-1 log.
        precision: no, bf16 or fp16.
        device: `auto` for accelerate's choice, or a device of torch: cpu, cuda, cuda:1, mps.
        seed: of every draw.
        cache: folder of proxy caches; None for the user's cache folder.
        work: folder for checkpoints; a fit with the same arguments and data goes on there.
        checkpoint_seconds: between two checkpoints.
        trust_remote_code: run code that the backbone's repository carries.
        verbose: print progress with the time left.
    """

    backbone: Any = field(default="minilm-l6", kw_only=False)
    task: str = "auto"
    method: str = "recraft"
    method_options: Mapping[str, Any] | None = None
    proxy: Any = "auto"
    proxy_items: int = 2400
    kind: Any = "auto"
    tokens: int = 32
    patch: int | None = None
    stem: Any = "patch"
    missing: Any = "refuse"
    predictor: Literal["linear", "transport", "pooled"] = "linear"
    base: str = "none"
    freeze_embedder: bool = False
    lora_rank: int = 0
    omega: float | str = "grid"
    loss: str | None = None
    metric: str | None = None
    epochs: int | str = "auto"
    steps: int | None = None
    batch_size: int | str = "auto"
    accumulation: int = 1
    learning_rate: float = 2e-4
    embedder_factor: float = 10.0
    weight_decay: float = 0.01
    warmup: float = 0.1
    clip: float = 1.0
    patience: int | None = None
    select: bool = True
    validation: Any = 0.2
    log_every: int = 16
    precision: str = "no"
    device: str = "auto"
    seed: int = 0
    cache: str | Path | None = None
    work: str | Path | None = None
    checkpoint_seconds: float = 30.0
    trust_remote_code: bool = False
    verbose: bool = False

    def checked(self) -> None:
        """Refuse numbers that cannot be, before anything is read."""
        _at_least("tokens", self.tokens, 2)
        _at_least("proxy_items", self.proxy_items, 10)
        _at_least("accumulation", self.accumulation, 1)
        _at_least("lora_rank", self.lora_rank, 0)
        _at_least("log_every", self.log_every, 1)
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if value != "auto":
                _at_least(name, value, 1)
        for name in ("steps", "patch", "patience"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("learning_rate", "embedder_factor"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"it is {getattr(self, name)}", where=name, fix="give a number above 0")
        _check_omega(self.omega)
        _check_device(self.device)
        for name, choices in (
            ("predictor", ("linear", "transport", "pooled")),
            ("freeze_embedder", (False, True)),
            ("stem", ("patch", "multiscale", "rocket")),
            ("missing", ("refuse", "fill")),
            ("precision", ("no", "bf16", "fp16")),
            ("base", ("none", "auto", "rocket", "ridge", "logistic")),
        ):
            if getattr(self, name) not in choices:
                raise OptionError(
                    f"it is '{getattr(self, name)}'", where=name, fix=f"choose {', '.join(map(str, choices))}"
                )

    def recorded(self) -> dict[str, Any]:
        """Return the parameters that decide the result, as JSON holds them.

        Places and progress are left out.
        """
        left_out = {"cache", "work", "checkpoint_seconds", "verbose", "trust_remote_code", "device"}
        return {
            one.name: _plain(getattr(self, one.name)) for one in fields(Settings) if one.name not in left_out
        }


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"it is {value!r}", where=name, fix=f"give a whole number from {least}")


def _check_omega(omega: float | str) -> None:
    if omega != "grid" and not (isinstance(omega, int | float) and 0 < omega < math.inf):
        raise OptionError(f"ω is {omega!r}", where="omega", fix='give a number above 0, or "grid"')


def _check_device(device: str) -> None:
    """Refuse a device that is none or is not here: nothing falls back to the CPU in silence."""
    if device == "auto":
        return
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise OptionError(
            f"there is no device '{device}'", where="device", fix="choose auto, cpu, or one such as cuda:1"
        ) from error
    if wanted.type == "cpu":
        return
    backend: Any = getattr(torch, wanted.type, None)
    count = backend.device_count() if hasattr(backend, "device_count") else 0
    if (wanted.index or 0) >= count:
        raise OptionError(f"this machine has no {device}", where="device", fix="choose auto or cpu")
    if wanted.index is not None and parallel.launched():
        raise OptionError(
            f"every process of a launch has a device of its own, and this is {device}",
            where="device",
            fix=f"choose {wanted.type}",
        )


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return str(value) if isinstance(value, Path) else type(value).__name__


__all__ = ["COMMAND", "Settings"]
