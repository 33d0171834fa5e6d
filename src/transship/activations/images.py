"""Pixels for models that bring no image processor, and arrays for any model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.errors import DataError


def image_size(config: Any) -> tuple[int, int] | None:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None)
    if isinstance(size, int):
        return size, size
    return tuple(size) if isinstance(size, list | tuple) and len(size) == 2 else None


def with_channels(image: Any, channels: int) -> Any:
    """Return a PIL image with the model's channels, or the array as it is."""
    if hasattr(image, "convert"):
        return image.convert("L" if channels == 1 else "RGB")
    array = np.asarray(image)
    return np.repeat(array[..., None], channels, -1) if array.ndim == 2 else array


def plain_pixels(image: Any, channels: int, size: tuple[int, int]) -> Tensor:
    """Return [channels, height, width] in 0…1 for models without a processor: resized, not normalised."""
    from PIL import Image

    if not hasattr(image, "convert"):
        array = np.asarray(image)
        if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[-1] not in (1, 3):
            array = array.transpose(1, 2, 0)
        if array.dtype.kind == "f":
            array = (array * 255).round().clip(0, 255)
        image = Image.fromarray(array.astype(np.uint8).squeeze())
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy(pixels.reshape(*size, channels)).permute(2, 0, 1).contiguous()


def stack_arrays(inputs: Sequence[Any]) -> Tensor:
    rows = [torch.as_tensor(np.asarray(item)) for item in inputs]
    if len({tuple(row.shape) for row in rows}) > 1:
        raise DataError(
            "inputs of different shapes", where="batch", fix="pad them, or give a preprocess function"
        )
    stacked = torch.stack(rows)
    return stacked.float() if stacked.dtype == torch.float64 else stacked
