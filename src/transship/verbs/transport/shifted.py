"""A model with an update added for a while, and exactly as before afterwards."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def shifted(model: nn.Module, update: Mapping[str, Tensor], strength: float = 1.0) -> Iterator[None]:
    """Add strength × update to the parameters while the block runs; the old values come back bit for bit."""
    parameters = dict(model.named_parameters())
    kept: dict[str, Tensor] = {}
    try:
        with torch.no_grad():
            if strength != 0.0:
                for name, change in update.items():
                    parameter = parameters[name]
                    kept[name] = parameter.detach().clone()
                    parameter.copy_(parameter.float() + strength * change.to(parameter.device).float())
        yield
    finally:
        with torch.no_grad():
            for name, before in kept.items():
                parameters[name].copy_(before)
