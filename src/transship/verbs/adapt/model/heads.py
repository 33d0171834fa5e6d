"""Heads: what is read off the body's states [inputs, states, width]."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Predictor = Literal["linear", "transport", "pooled"]


@dataclass(frozen=True)
class HeadShape:
    """What a head is built from, as it is saved.

    Attributes:
        predictor: `linear`; `transport`: Λ over the source's labels; `pooled`: a dense head without weights.
        width: of a state.
        outputs: numbers per input (classes, labels, 1), or channels of a dense target.
        size: (length,) or (height, width) of a dense target; empty for one answer per input.
        grid: (rows, columns) of the patches that the states belong to.
        prefix: states before those of the patches.
        source: labels of the source, for `transport`.
    """

    predictor: Predictor
    width: int
    outputs: int
    size: tuple[int, ...] = ()
    grid: tuple[int, int] = (1, 1)
    prefix: int = 0
    source: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "HeadShape":
        """Return what `to_dict` gave."""
        known: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
        return cls(**known)

    def build(self) -> nn.Module:
        """Return the head, with weights from torch's current seed."""
        if self.size:
            return Dense(self)
        return TransportHead(self) if self.predictor == "transport" else Pooled(self)


@torch.no_grad()
def silence(head: nn.Module) -> None:
    """Let a head give zeros until it has learned."""
    for parameter in head.parameters():
        parameter.zero_()


class Pooled(nn.Module):
    """Token mean, then a linear map: [inputs, outputs]."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.width, shape.outputs)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Float[Tensor, "inputs states width"]) -> Float[Tensor, "inputs outputs"]:
        """Return the logits or values."""
        made: Tensor = self.linear(states.mean(1))
        return made


class TransportHead(nn.Module):
    """p_τ(z'|u) = Σ_z Λ(z'|z) p_s(z|u), Eq. (23); gives log-probabilities.

    Λ is a table of logits whose rows sum to one after the softmax; p_s starts as the source's own head.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.source = nn.Linear(shape.width, shape.source)
        self.table = nn.Parameter(torch.zeros(shape.source, shape.outputs))

    @property
    def plan(self) -> Float[Tensor, "source outputs"]:
        """Λ(z'|z)."""
        return self.table.softmax(1)

    @torch.no_grad()
    def start(self, weight: Tensor, bias: Tensor, plan: Float[Tensor, "source outputs"]) -> None:
        """Begin from the source's head and a plan (that of stage 1)."""
        self.source.weight.copy_(weight)
        self.source.bias.copy_(bias)
        self.table.copy_(plan.clamp_min(1e-6).log())

    def forward(self, states: Float[Tensor, "inputs states width"]) -> Float[Tensor, "inputs outputs"]:
        """Return log p_τ."""
        source = self.source(states.mean(1)).log_softmax(1)
        return torch.logsumexp(source[:, :, None] + self.table.log_softmax(1), dim=1)


class Dense(nn.Module):
    """Every state gives the values of its own patch: [inputs, channels, length] or [..., height, width].

    `linear` maps a state to its patch; `pooled` averages along the state instead and has no weights (ORCA's).
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.linear: nn.Linear | None = None
        self.rows, self.columns = shape.grid if len(shape.size) == 2 else (1, shape.grid[0] * shape.grid[1])
        if shape.predictor != "pooled":
            self.linear = nn.Linear(shape.width, self._values())
            nn.init.normal_(self.linear.weight, std=0.02)
            nn.init.zeros_(self.linear.bias)

    def _sides(self) -> tuple[int, int]:
        size = self.shape.size if len(self.shape.size) == 2 else (1, self.shape.size[0])
        return -(-size[0] // self.rows), -(-size[1] // self.columns)

    def _values(self) -> int:
        return self.shape.outputs * math.prod(self._sides())

    def forward(self, states: Float[Tensor, "inputs states width"]) -> Float[Tensor, "inputs channels ..."]:
        """Return the field or signal."""
        states = states[:, self.shape.prefix :]
        made = (
            self.linear(states)
            if self.linear is not None
            else functional.adaptive_avg_pool1d(states, self._values())
        )
        high, wide = self._sides()
        channels = self.shape.outputs
        made = made.reshape(len(states), self.rows, self.columns, channels, high, wide)
        plane = made.permute(0, 3, 1, 4, 2, 5).reshape(
            len(states), channels, self.rows * high, self.columns * wide
        )
        if len(self.shape.size) == 1:
            return plane[:, :, 0, : self.shape.size[0]]
        return plane[:, :, : self.shape.size[0], : self.shape.size[1]]


__all__ = ["Dense", "HeadShape", "Pooled", "Predictor", "TransportHead", "silence"]
