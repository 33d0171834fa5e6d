"""Grids as targets of a small vision transformer: spectrograms, Darcy flow and road signs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from transship.data import Dataset, find_data, load
from transship.types import Array
from transship_suites.materials.small_vision import PRETRAIN_ROWS, VitShape, load_pictures, pretrained
from transship_suites.materials.targets import TEST_SEED, Target, drawn_task, series_task
from transship_suites.runner import Context

SPECTRAL = "CricketX"  # the series whose spectrograms are read
PROXY_ROWS = 4000


def grid_task(name: str, *, rows: int | None, test: int | None, seed: int) -> Target:
    """Return a task of grids [rows, channels, height, width]; arguments as of `series_task`."""
    if name == "darcy":
        return _darcy(rows, test, seed)
    if name == "spectrogram":
        series = series_task(SPECTRAL, rows=rows, test=test, seed=seed)
        parts = [(spectrograms(inputs[:, 0]), labels) for inputs, labels in (series.train, series.validation)]
        return Target(
            name, "classification", parts[0], parts[1], (spectrograms(series.test[0][:, 0]), series.test[1])
        )
    return drawn_task(name, _signs("train"), _signs("test"), rows=rows, test=test, seed=seed)


def spectrograms(series: Array, *, window: int = 32, size: int = 28) -> Array:
    """Return the logarithm of short-time Fourier magnitudes as pictures [rows, 1, size, size].

    `size` windows of `window` samples (Hann) spread over a series, and frequencies interpolated to `size`.
    """
    starts = np.linspace(0, series.shape[1] - window, size).round().astype(int)
    pieces = np.stack([series[:, start : start + window] for start in starts], 1) * np.hanning(window)
    heights = np.log1p(np.abs(np.fft.rfft(pieces, n=2 * size, axis=-1))[..., :size])
    return heights.transpose(0, 2, 1)[:, None].astype(np.float32)


def base(context: Context, steps: int) -> nn.Module:
    """Return the vision transformer's encoder, pre-trained once on MNIST and Fashion-MNIST and kept."""
    model: Any = pretrained(context, VitShape(), steps=steps, seed=TEST_SEED)
    encoder: nn.Module = model.vit
    return encoder


@cache
def proxy() -> Dataset:
    """Return digits and clothes as labelled pictures: the source's own modality, twenty classes."""
    pictures = load_pictures("train", PRETRAIN_ROWS)
    grey = (255 * pictures.inputs[:PROXY_ROWS, 0]).round().byte().numpy()
    return Dataset(
        name="digits and clothes",
        kind="image",
        inputs=[Image.fromarray(picture) for picture in grey],
        labels=pictures.labels[:PROXY_ROWS].numpy().astype(np.int64),
        label_names=tuple(f"{kind} {number}" for kind in ("digit", "garment") for number in range(10)),
    )


def _darcy(rows: int | None, test: int | None, seed: int) -> Target:
    (inputs, outputs), held = _darcy_file("train"), _darcy_file("test")
    order = np.random.default_rng(seed).permutation(len(inputs))[:rows]
    cut = len(order) - max(1, len(order) // 5)
    parts = [(inputs[some], outputs[some]) for some in (order[:cut], order[cut:])]
    settings = {"patch": 2, "metric": "relative-l2", "loss": "relative-l2"}
    return Target("darcy", "dense", parts[0], parts[1], (held[0][:test], held[1][:test]), settings)


@cache
def _darcy_file(split: str) -> tuple[Array, Array]:
    arrays = torch.load(find_data(f"pde_darcy_{split}_16"), weights_only=True)
    return arrays["x"].float()[:, None].numpy(), arrays["y"].float()[:, None].numpy()


@cache
def _signs(split: str) -> tuple[Array, Array]:
    part = load("gtsrb_32").split(split)
    assert part.labels is not None
    pixels = np.stack([np.asarray(picture.convert("RGB"), np.float32) / 255 for picture in part.inputs])
    return pixels.transpose(0, 3, 1, 2).copy(), part.labels
