"""What a fit may be told. One dataclass.

The estimator's parameters, the command line's options, the card's table.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transship import parallel
from transship.errors import OptionError
from transship.fields import setting

Kind = Literal["auto", "series", "grid", "tokens", "tabular"]
Missing = Literal["refuse", "fill"]
Base = Literal["none", "auto", "rocket", "minirocket", "ridge", "logistic", "ngrams", "forest"]


@dataclass(eq=False, repr=False, kw_only=True)
class Settings:
    """The parameters of an adaptation.

    Attributes:
        backbone: a BERT, RoBERTa, MPNet, DistilBERT, ViT or Swin model: a folder, a name in the model
            folders, a hub id, or an encoder of transformers.
        task: what is predicted; auto decides by the targets.
        method: how to adapt; see `transship methods adapt`.
        method_options: the method's own parameters.
        proxy: labelled data of the backbone's own modality; auto takes WordNet for text backbones.
        proxy_items: use at most this many rows of the proxy, balanced over classes.
        kind: what inputs are; auto decides by the number of axes.
        tokens: cut a series, or a field before a text backbone, into at most this many tokens.
        patch: samples per token, or the side of a patch; by default --tokens decides.
        stem: what a token sees of a series: its patch, also longer windows, random convolutions, or (of
            symbols) k-mers.
        missing: refuse rows with NaN, or fill NaN with the channel's mean.
        predictor: a linear head, label transport (Λ over source labels), or a dense head without weights.
        base: the raw model that the network corrects: none, one by name, or the best (auto).
        freeze_embedder: leave the embedder as stage 1 made it.
        lora_rank: train LoRA factors of this rank in the body; 0 trains its weights.
        omega: a number ω, or grid: the smallest ω that keeps the accuracy of the source head.
        loss: what stage 2 minimises; the task's usual loss by default.
        metric: the figure that validation chooses by; the task's usual metric by default.
        epochs: passes over the rows in stage 2; auto decides by their number.
        steps: optimiser steps of stage 2, instead of epochs.
        batch_size: rows in a batch; auto decides by their number.
        accumulation: batches whose gradients are added in one step.
        learning_rate: learning rate of the body.
        embedder_factor: how many times faster embedder and head learn.
        optimizer: the optimizer of stage 2.
        momentum: the momentum of sgd.
        weight_decay: the weight decay of the optimizer; only adamw keeps it apart from the gradient.
        warmup: share of the steps in which the rate rises.
        clip: largest gradient norm.
        patience: stop stage 2 after this many validations without a better one.
        select: keep the weights of the best validation, or the last ones; these are validated at the end
            only, unless there is `patience`.
        validation: share of the rows to choose by, or a pair (X, y); a reference on the command line.
        log_every: steps between two rows of the stage-1 log.
        precision: mixed precision, or no for float32.
        device: auto for accelerate's choice, or a device of torch: cpu, cuda, cuda:1, mps.
        seed: of every draw.
        cache: folder of proxy caches; None for the user's cache folder.
        work: folder for checkpoints; a fit with the same arguments and data goes on there.
        checkpoint_seconds: between two checkpoints.
        trust_remote_code: run code that the backbone's repository carries.
        verbose: print progress with the time left.
    """

    backbone: Any = dataclasses.field(default="minilm-l6", kw_only=False)
    task: Literal["auto", "classification", "multilabel", "regression", "dense"] = "auto"
    method: str = "recraft"
    method_options: Mapping[str, Any] | None = setting(None, absent=True)
    proxy: Any = "auto"
    proxy_items: int = 2400
    kind: Kind = "auto"
    tokens: int = 32
    patch: int | None = None
    stem: Literal["patch", "multiscale", "rocket", "kmer"] = "patch"
    missing: Missing = "refuse"
    predictor: Literal["linear", "transport", "pooled"] = "linear"
    base: Base = "none"
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
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    momentum: float = setting(0.9, absent=True)
    weight_decay: float = setting(0.01, absent=True)
    warmup: float = setting(0.1, absent=True)
    clip: float = setting(1.0, absent=True)
    patience: int | None = None
    select: bool = setting(True, absent=True)
    validation: float | Any = setting(
        0.2, help="A share of the rows, or other data. If that has splits, its validation rows are read."
    )
    log_every: int = setting(16, absent=True)
    precision: Literal["no", "bf16", "fp16"] = "no"
    device: str = "auto"
    seed: int = setting(0, help="Fixes every random choice.")
    cache: str | Path | None = setting(None, absent=True)
    work: str | Path | None = setting(None, absent=True)
    checkpoint_seconds: float = setting(30.0, absent=True)
    trust_remote_code: bool = False
    verbose: bool = setting(False, absent=True)

    def checked(self) -> None:
        """Refuse numbers that cannot be, before anything is read."""
        for name, least in {"tokens": 2, "proxy_items": 10, "accumulation": 1, "lora_rank": 0}.items():
            _at_least(name, getattr(self, name), least)
        for name in ("log_every", "epochs", "batch_size", "steps", "patch", "patience"):
            value = getattr(self, name)
            if value is not None and not (value == "auto" and name in ("epochs", "batch_size")):
                _at_least(name, value, 1)
        for name in ("learning_rate", "embedder_factor"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"it is {getattr(self, name)}", where=name, fix="give a number above 0")
        if not 0 <= self.momentum < 1:
            raise OptionError(
                f"it is {self.momentum}", where="momentum", fix="give a number from 0 to below 1"
            )
        _check_omega(self.omega)
        parallel.require_device(self.device)
        for name, hint in typing.get_type_hints(Settings).items():
            choices = (False, True) if hint is bool else typing.get_args(hint)
            choosing = hint is bool or typing.get_origin(hint) is Literal
            if choosing and getattr(self, name) not in choices:
                shown = ", ".join(map(str, choices))
                raise OptionError(f"it is '{getattr(self, name)}'", where=name, fix=f"choose {shown}")

    def recorded(self) -> dict[str, Any]:
        """Return the parameters that decide the result, as JSON holds them; no places."""
        left_out = {"cache", "work", "checkpoint_seconds", "verbose", "trust_remote_code", "device"}
        names = [field.name for field in dataclasses.fields(Settings) if field.name not in left_out]
        return {name: _plain(getattr(self, name)) for name in names}

    def budget(self, rows: int) -> dict[str, Any]:
        """Return how long stage 2 is for so many rows, and how fast, as the model's card has it."""
        names = ("accumulation", "embedder_factor", "weight_decay", "warmup", "clip", "patience", "select")
        sizes = {"steps": self.stage_two_steps(rows), "batch": self.batch_rows(rows)}
        own = {name: getattr(self, name) for name in (*names, "lora_rank")}
        return {**sizes, "optimizer": self.optimizer, "rate": self.learning_rate, **own}

    def stage_two_steps(self, rows: int) -> int:
        """Return the steps of stage 2: as told, or so many passes over the rows."""
        epoch = max(1, rows // (self.batch_rows(rows) * self.accumulation))
        passes = min(max(round(400 / epoch), 8), 30) if self.epochs == "auto" else int(self.epochs)
        return self.steps or passes * epoch

    def batch_rows(self, rows: int) -> int:
        """Return the rows of a micro-batch: as asked, or by the number of rows."""
        usual = 16 if rows < 1500 else 32 if rows < 4000 else 64
        return min(usual if self.batch_size == "auto" else int(self.batch_size), rows)


@dataclass(eq=False, repr=False, kw_only=True)
class CommandSettings(Settings):
    """The same for `transship adapt fit`, which runs the raw baselines, and builds on the best of them.

    Attributes:
        base: the raw model that the network corrects, or none; auto is the best one, where raw baselines are
            run and the head is linear.
        compare: whether the raw baselines are run.
    """

    base: Base = "auto"
    compare: bool = setting(True, negative="--no-baseline", help="Do not run the raw baselines.")


# what the command line sets otherwise than the estimator
COMMAND: Mapping[str, Any] = {"base": CommandSettings.base}


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"it is {value!r}", where=name, fix=f"give a whole number from {least}")


def _check_omega(omega: float | str) -> None:
    if omega != "grid" and not (isinstance(omega, int | float) and 0 < omega < math.inf):
        raise OptionError(f"ω is {omega!r}", where="omega", fix='give a number above 0, or "grid"')


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return str(value) if isinstance(value, Path) else type(value).__name__
