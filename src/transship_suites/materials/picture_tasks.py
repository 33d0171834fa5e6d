"""Eight picture tasks with label sets of their own, all as grey 28×28 pictures in memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d

from transship.data import load
from transship.numerics import derive_seed
from transship_suites.materials.bodies import LabelledTask
from transship_suites.materials.origins import PICTURE_TASKS
from transship_suites.materials.small_vision import LabelledRows, load_pictures

# what load_pictures draws; half of it are digits, half clothes
POOL = {"train": 20000, "test": 4000}
# USPS comes in one piece of 2,007 pictures: these many are for training
USPS_TRAINING = 1400


def pretraining_pictures() -> LabelledRows:
    """Return the digits 0–4 and the clothes 0–4 of the training pool, as ten classes."""
    pool = load_pictures("train", POOL["train"])
    kept = (pool.labels % 10) < 5
    labels = pool.labels[kept]
    return LabelledRows(pool.inputs[kept], torch.where(labels < 10, labels, labels - 5))


@cache
def load_task(name: str, rows: int, test_rows: int) -> LabelledTask:
    """Return `rows` training and `test_rows` test pictures of a task (fewer where it has fewer).

    Which pictures they are does not depend on any seed of a run.
    """
    split = {part: _pictures(name, part, most) for part, most in (("train", rows), ("test", test_rows))}
    return LabelledTask(name, split["train"], split["test"], PICTURE_TASKS[name])


def _pictures(name: str, split: str, most: int) -> LabelledRows:
    make = _stored if name in ("signs", "usps") else _made
    return LabelledRows(*make(name, split, most))


def _made(name: str, split: str, most: int) -> tuple[Tensor, Tensor]:
    """Return a task that is made of digits and clothes."""
    pool = load_pictures(split, POOL[split])
    digits, clothes = pool.take(pool.labels < 10), pool.take(pool.labels >= 10)
    generator = torch.Generator().manual_seed(derive_seed(0, "otmf task", name, split))
    if name == "turned-clothes":
        return torch.rot90(clothes.inputs[:most], 1, (2, 3)), clothes.labels[:most] - 10
    if name == "digits-over-clothes":
        return torch.maximum(digits.inputs[:most], 0.7 * clothes.inputs[:most]), digits.labels[:most]
    if name == "small-digits":
        return _small(digits.inputs[:most], generator), digits.labels[:most]
    if name == "turns":
        turn = torch.randint(4, (min(most, len(clothes)),), generator=generator)
        pairs = zip(clothes.inputs[: len(turn)], turn.tolist(), strict=True)
        return torch.stack([torch.rot90(image, times, (1, 2)) for image, times in pairs]), turn
    part, first = (clothes, 15) if name == "clothes-5-9" else (digits, 5)
    late = part.take(part.labels >= first)
    return late.inputs[:most], late.labels[:most] - first


def _small(images: Tensor, generator: Any) -> Tensor:
    """Return pictures at half their size, each somewhere in an empty one."""
    placed, half = torch.zeros_like(images), avg_pool2d(images, 2)
    corners = torch.randint(15, (len(images), 2), generator=generator).tolist()
    for row, (y, x) in enumerate(corners):
        placed[row, :, y : y + 14, x : x + 14] = half[row]
    return placed


def _stored(name: str, split: str, most: int) -> tuple[Tensor, Tensor]:
    """Return a task from a file of its own, mixed by a fixed permutation."""
    data = load("gtsrb_32" if name == "signs" else "usps_test")
    data = data.split(split) if name == "signs" else data
    assert data.labels is not None
    order = np.random.default_rng(13).permutation(len(data))
    if name == "usps":
        order = order[:USPS_TRAINING] if split == "train" else order[USPS_TRAINING:]
    order = order[:most]
    grey = [data.inputs[row].convert("L").resize((28, 28), Image.Resampling.BILINEAR) for row in order]
    pixels = np.stack([np.asarray(picture, dtype=np.float32) / 255 for picture in grey])
    return torch.from_numpy(pixels[:, None]), torch.from_numpy(data.labels[order].astype(np.int64))
