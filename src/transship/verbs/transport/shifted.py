"""A model with an update added for a while, and exactly as before afterwards."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations.loading import resting


@contextlib.contextmanager
def shifted(model: nn.Module, update: Mapping[str, Tensor], strength: float = 1.0) -> Iterator[None]:
    """Add strength × update to the parameters while the block runs; the old values come back bit for bit.

    A parameter that a device map left on disk is shifted on its way to the module that runs.
    """
    parameters = dict(model.named_parameters())
    kept: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack:
        try:
            with torch.no_grad():
                for name, change in update.items() if strength != 0.0 else ():
                    parameter = parameters[name]
                    if parameter.is_meta:
                        stack.enter_context(_on_its_way(model, name, strength * change.float()))
                        continue
                    kept[name] = parameter.detach().clone()
                    parameter.copy_(parameter.float() + strength * change.to(parameter.device).float())
            yield
        finally:
            with torch.no_grad():
                for name, before in kept.items():
                    parameters[name].copy_(before)


@contextlib.contextmanager
def _on_its_way(model: nn.Module, name: str, change: Tensor) -> Iterator[None]:
    hook, leaf = resting(model, name)
    before = hook.weights_map
    hook.weights_map = _Shifted(before, leaf, change)
    try:
        yield
    finally:
        hook.weights_map = before


class _Shifted(Mapping[str, Tensor]):
    """A module's stored weights, one of them with a change added."""

    def __init__(self, stored: Any, leaf: str, change: Tensor) -> None:
        self.stored, self.leaf, self.change = stored, leaf, change

    def __getitem__(self, name: str) -> Tensor:
        value: Tensor = self.stored[name]
        if name != self.leaf:
            return value
        return (value.float() + self.change.to(value.device)).to(value.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)
