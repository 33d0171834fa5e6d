"""Tasks: a fixed shift of all inputs with the labels unchanged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SHIFTS = ("rotation", "noise", "inversion", "shear", "blur", "occlusion", "stripes", "zoom")


def shift(images: Tensor, task: str, *, seed: int) -> Tensor:
    """Return `images` [rows, 1, 28, 28] as the task shows them; `seed` draws what is random in it."""
    import torch

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
        made = images.clone()
        corner = torch.randint(2, 13, (len(images), 2), generator=generator)
        for row, (y, x) in enumerate(corner.tolist()):
            made[row, :, y : y + 13, x : x + 13] = 0.5
        return made
    raise ValueError(f"there is no task '{task}'")


def augment(images: Tensor, generator: object) -> Tensor:
    """Return images turned by up to 8°, scaled by up to 10 % and moved by up to 2 pixels."""
    import torch

    assert isinstance(generator, torch.Generator)
    draws = torch.rand(len(images), 4, generator=generator) * 2 - 1
    angle, scale = draws[:, 0] * (8 * math.pi / 180), 1 + 0.1 * draws[:, 1]
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    rows = [torch.stack([cos, -sin, draws[:, 2] / 7], 1), torch.stack([sin, cos, draws[:, 3] / 7], 1)]
    return _sample(images, torch.stack(rows, 1))


def _affine(images: Tensor, *, angle: float = 0.0, shear: float = 0.0, scale: float = 1.0) -> Tensor:
    import torch

    turn = math.radians(angle)
    matrix = torch.tensor(
        [
            [scale * math.cos(turn), scale * (shear - math.sin(turn)), 0.0],
            [scale * math.sin(turn), scale * math.cos(turn), 0.0],
        ]
    )
    return _sample(images, matrix.expand(len(images), 2, 3))


def _sample(images: Tensor, matrices: Tensor) -> Tensor:
    from torch.nn import functional

    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def _blur(images: Tensor, sigma: float) -> Tensor:
    import torch
    from torch.nn import functional

    kernel = torch.exp(-(torch.arange(-5, 6) ** 2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    made = functional.conv2d(images, kernel.reshape(1, 1, 1, -1), padding=(0, 5))
    return functional.conv2d(made, kernel.reshape(1, 1, -1, 1), padding=(5, 0))
