"""What a finish may move: strengths of a moved update by tensor or by row, weights, or their factors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


class Movable(Protocol):
    """A student's weights as a function of what is learnt."""

    def start(self) -> Tensors:
        """Return what is learnt, as it is before the first step: copies in float32."""

    def weights(self, learnt: Mapping[str, Tensor]) -> Tensors:
        """Return the student's weights, differentiable in what is learnt."""


@dataclass(frozen=True, eq=False)
class Strengths:
    """θ = θ_0 + s ⊙ δ, one s per tensor of δ or one per row of each.

    Attributes:
        base: θ_0 of every tensor of δ.
        change: δ.
        per: `tensor`, or `row`: the first axis of a tensor, so that of a vector every entry.
        strength: s at the start.
    """

    base: Mapping[str, Tensor]
    change: Mapping[str, Tensor]
    per: Literal["tensor", "row"] = "tensor"
    strength: float = 1.0

    def start(self) -> Tensors:
        return {
            name: torch.full((len(change) if self.per == "row" and change.ndim else 1,), self.strength)
            for name, change in self.change.items()
        }

    def weights(self, learnt: Mapping[str, Tensor]) -> Tensors:
        """Return θ."""
        return {
            name: self.base[name].float() + spread(learnt[name].to(change.device), change) * change.float()
            for name, change in self.change.items()
        }


def spread(strengths: Tensor, change: Tensor) -> Tensor:
    """Return strengths as they multiply a tensor: along its first axis."""
    return (
        strengths.reshape(-1, *(1 for _ in range(change.ndim - 1))) if change.ndim else strengths.reshape(())
    )


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights themselves.

    Attributes:
        tensors: as they are at the start.
    """

    tensors: Mapping[str, Tensor]

    def start(self) -> Tensors:
        """Return copies."""
        return {name: tensor.detach().float().clone() for name, tensor in self.tensors.items()}

    def weights(self, learnt: Mapping[str, Tensor]) -> Tensors:
        return dict(learnt)


@dataclass(frozen=True, eq=False)
class Factored:
    """θ = θ_0 + B A, with factors that are learnt.

    Attributes:
        base: θ_0 of every matrix that has factors.
        factors: (B, A) at the start, [out, rank] and [rank, in].
        others: tensors without factors that are learnt as they are.
    """

    base: Mapping[str, Tensor]
    factors: Mapping[str, tuple[Tensor, Tensor]]
    others: Mapping[str, Tensor]

    def start(self) -> Tensors:
        """Return the factors, each pair of equal norm, and the other tensors."""
        learnt = {name: tensor.detach().float().clone() for name, tensor in self.others.items()}
        for name, pair in self.factors.items():
            up, down = (factor.detach().float() for factor in pair)
            # a pair whose sides differ in size would learn at two speeds
            ratio = (down.norm() / up.norm()).sqrt() if bool(up.any()) and bool(down.any()) else 1.0
            learnt[f"{name}.up"], learnt[f"{name}.down"] = up * ratio, down / ratio
        return learnt

    def weights(self, learnt: Mapping[str, Tensor]) -> Tensors:
        """Return θ."""
        whole = {name: learnt[name] for name in self.others}
        for name in self.factors:
            product = learnt[f"{name}.up"] @ learnt[f"{name}.down"]
            whole[name] = self.base[name].float() + product.reshape(self.base[name].shape)
        return whole


def fresh_factors(matrices: Mapping[str, Tensor], rank: int, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return factors whose product is zero: B = 0, A drawn, as LoRA begins (Hu et al., section 4.1)."""
    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for name in sorted(matrices):
        out, width = matrices[name].shape[0], matrices[name][0].numel()
        most = min(rank, out, width)
        down = torch.randn(most, width, generator=generator) / width**0.5
        factors[name] = torch.zeros(out, most), down
    return factors
