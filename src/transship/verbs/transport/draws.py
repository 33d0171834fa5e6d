"""Random updates that keep a layer's norm: the same for the same seed and site, whatever is drawn beside."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from transship.numerics import derive_seed


def gaussian_like(
    update: Float[Tensor, "..."], shape: Sequence[int], seed: int, name: str
) -> Float[Tensor, "..."]:
    """Return Gaussian noise of `shape` with the Frobenius norm and dtype of `update`."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "random update", name, len(shape)))
    noise = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    scale = update.double().norm() / noise.norm().clamp_min(torch.finfo(torch.float64).tiny)
    made: Tensor = (noise * scale).to(update.dtype)
    return made
