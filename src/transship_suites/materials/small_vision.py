"""MNIST and Fashion-MNIST as one task of twenty classes, fixed shifts of it, and vision transformers of a few
thousand parameters that are trained on it from their seeds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

from transship.data import load
from transship.numerics import chunks
from transship_suites.runner import Context

CLASSES = 20


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Inputs of a task, such as pictures [rows, 1, 28, 28] in 0…1, and their classes."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> LabelledRows:
        return LabelledRows(self.inputs[rows], self.labels[rows])


@cache
def load_pictures(split: str, rows: int) -> LabelledRows:
    """Return `rows` images of a split, half of each set, drawn with a fixed seed and mixed.

    Digits are the classes 0–9, clothes 10–19.
    """
    images, labels = [], []
    for number, name in enumerate(("mnist", "fashion_mnist")):
        data = load(name).split(split).take(rows // 2, seed=7)
        images.append(
            np.stack([np.asarray(image.convert("L"), dtype=np.float32) / 255 for image in data.inputs])
        )
        assert data.labels is not None
        labels.append(data.labels + 10 * number)
    order = np.random.default_rng(11).permutation(len(images[0]) + len(images[1]))
    return LabelledRows(
        torch.from_numpy(np.concatenate(images)[order][:, None]),
        torch.from_numpy(np.concatenate(labels)[order]),
    )


def shift(images: Tensor, task: str, *, seed: int) -> Tensor:
    """Return `images` [rows, 1, 28, 28] as the task shows them; `seed` draws what is random in it."""
    generator = torch.Generator().manual_seed(seed)
    if task == "none":
        return images
    if task == "rotation":
        return _affine(images, angle=40.0)
    if task == "shear":
        return _affine(images, shear=0.7)
    if task == "zoom":
        return _affine(images, scale=1.9)
    if task == "noise":
        return (images + 0.5 * torch.randn(images.shape, generator=generator)).clamp(0, 1)
    if task == "inversion":
        return 1.0 - images
    if task == "blur":
        return _blur(images, 2.0)
    if task == "stripes":
        wave = 0.5 + 0.5 * torch.sin(torch.arange(28) * (2 * math.pi / 5.0))
        return (0.6 * images + 0.6 * wave[None, None, None, :]).clamp(0, 1)
    if task == "occlusion":
        covered = images.clone()
        corner = torch.randint(2, 13, (len(images), 2), generator=generator)
        for row, (y, x) in enumerate(corner.tolist()):
            covered[row, :, y : y + 13, x : x + 13] = 0.5
        return covered
    raise ValueError(f"there is no task '{task}'")


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images turned by up to 8°, scaled by up to 10 % and moved by up to 2 pixels."""
    draws = torch.rand(len(images), 4, generator=generator) * 2 - 1
    angle, scale = draws[:, 0] * (8 * math.pi / 180), 1 + 0.1 * draws[:, 1]
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    rows = [torch.stack([cos, -sin, draws[:, 2] / 7], 1), torch.stack([sin, cos, draws[:, 3] / 7], 1)]
    return _sample(images, torch.stack(rows, 1))


def _affine(images: Tensor, *, angle: float = 0.0, shear: float = 0.0, scale: float = 1.0) -> Tensor:
    turn = math.radians(angle)
    matrix = torch.tensor(
        [
            [scale * math.cos(turn), scale * (shear - math.sin(turn)), 0.0],
            [scale * math.sin(turn), scale * math.cos(turn), 0.0],
        ]
    )
    return _sample(images, matrix.expand(len(images), 2, 3))


def _sample(images: Tensor, matrices: Tensor) -> Tensor:
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def _blur(images: Tensor, sigma: float) -> Tensor:
    kernel = torch.exp(-(torch.arange(-5, 6) ** 2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    across = functional.conv2d(images, kernel.reshape(1, 1, 1, -1), padding=(0, 5))
    return functional.conv2d(across, kernel.reshape(1, 1, -1, 1), padding=(5, 0))


HEAD_WIDTH = 16
PRETRAIN_ROWS = 20000


@dataclass(frozen=True)
class VitShape:
    """The shape of a network: ViT with pre-norm blocks, MLP ratio 2, a class token and a head of twenty
    classes.
    """

    width: int = 64
    blocks: int = 4
    patch: int = 7

    def build(self) -> nn.Module:
        """Return it with weights from torch's current seed."""
        config = ViTConfig(
            hidden_size=self.width,
            num_hidden_layers=self.blocks,
            num_attention_heads=self.width // HEAD_WIDTH,
            intermediate_size=2 * self.width,
            image_size=28,
            patch_size=self.patch,
            num_channels=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config.num_labels = CLASSES
        network: nn.Module = ViTForImageClassification(config)
        return network

    def load(self, arrays: Mapping[str, Any]) -> nn.Module:
        """Return it with given weights, ready to run."""
        network = self.build()
        network.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
        return network.eval()


def pretrained(context: Context, shape: VitShape, *, steps: int, seed: int) -> nn.Module:
    """Return the network that `pretrain` makes of 20,000 pictures, made once for all suites."""
    settings = {"steps": steps, "seed": seed}
    arrays = context.cached(
        "small-vision",
        {**settings, "shape": str(shape), "rows": PRETRAIN_ROWS},
        lambda: to_arrays(pretrain(shape, load_pictures("train", PRETRAIN_ROWS), **settings)),
        code=(pretrain, _train, augment, VitShape),
    )
    return shape.load(arrays)


def to_arrays(model: nn.Module) -> dict[str, Any]:
    """Return a model's weights as the cache keeps them."""
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def pretrain(shape: VitShape, pictures: LabelledRows, *, steps: int, seed: int, batch: int = 64) -> nn.Module:
    """Train on all twenty classes with mild augmentation: AdamW, one cycle, from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = shape.build()
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(pictures), (batch,), generator=generator)
        return augment(pictures.inputs[rows], generator), pictures.labels[rows]

    return _train(model, list(model.parameters()), draw, steps=steps, rate=1e-3)


def fine_tune(
    model: nn.Module, pictures: LabelledRows, *, steps: int, seed: int, batch: int = 64
) -> nn.Module:
    """Train a copy on a task's pictures with the head frozen: AdamW at 3e-4."""
    tuned = copy.deepcopy(model).train()
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(pictures), (batch,), generator=generator)
        return pictures.inputs[rows], pictures.labels[rows]

    body = [parameter for name, parameter in tuned.named_parameters() if not name.startswith("classifier")]
    return _train(tuned, body, draw, steps=steps, rate=3e-4)


def _train(
    model: nn.Module,
    parameters: list[Any],
    draw: Callable[[], tuple[Tensor, Tensor]],
    *,
    steps: int,
    rate: float,
) -> nn.Module:
    model.train()
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / max(1, steps // 10)) * (1 - 0.9 * step / steps)
    )
    for _ in range(steps):
        images, labels = draw()
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(model(images).logits, labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return model.eval()


def accuracy(model: nn.Module, pictures: LabelledRows, batch: int = 500) -> float:
    """Return the share of pictures whose class is the largest output."""
    right = 0
    with torch.inference_mode():
        for rows in chunks(len(pictures), batch):
            classes = model(pictures.inputs[rows]).logits.argmax(1)
            right += int((classes == pictures.labels[rows]).sum())
    return right / len(pictures)
