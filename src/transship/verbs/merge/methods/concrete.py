"""Concrete task arithmetic: one mask for all updates, learnt without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transship.numerics import derive_seed
from transship.verbs.merge.maths.checks import check_classes
from transship.verbs.merge.maths.entropy import Descent
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.methods._entropy import EntropyMethod, Weights
from transship.verbs.merge.protocol import Seen


@dataclass(frozen=True, kw_only=True)
class Concrete(EntropyMethod):
    """Learn one random mask for all updates that makes predictions sure, without labels.

    Tang et al., "Concrete Subspace Learning based Interference Elimination for Multi-task Model Fusion":
    θ = θ_0 + λ Σ M ⊙ τ_k, M a relaxed Bernoulli mask divided by its mean in each tensor. The final mask is a
    draw; ours is fixed by the seed. One after another, the pair (τ_m, τ_t).

    Attributes:
        scale: λ (`lambda` in recipes).
        temperature: of the relaxed Bernoulli masks.
    """

    paper: ClassVar[str] = "Tang et al., 2023"
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    held: ClassVar[tuple[float, float]] = (10.0, 2.0)
    copies: ClassVar[float] = 8.0

    scale: float = 0.3
    temperature: float = 0.5
    steps: int = 2000

    def learned(
        self, base: Weights, updates: Sequence[Weights], tasks: Sequence[Seen], descent: Descent
    ) -> tuple[Vector, Sequence[float]]:
        """Return λ M ⊙ Σ τ_k."""
        mask = learn_mask(
            base, updates, tasks, scale=self.scale, temperature=self.temperature, descent=descent
        )
        return mask.merged(updates), mask.losses


@dataclass(frozen=True)
class ConcreteMask:
    """The learnt logits of Concrete's mask, and the mask drawn from them in the end.

    Attributes:
        logits: tensor → [as the tensor].
        scale: λ.
        seed: of the final draw.
    """

    logits: Vector
    scale: float
    temperature: float
    seed: int
    losses: list[float]

    def of(self, name: str) -> Tensor:
        """Return the final mask of one tensor, keyed by its name and divided by its mean."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "concrete", name))
        return relaxed(self.logits[name], self.temperature, generator)

    def merged(self, updates: Sequence[Mapping[str, Tensor]]) -> Vector:
        """Return λ Σ_k M ⊙ τ_k."""
        return {name: self.scale * self.of(name) * summed(updates, name) for name in self.logits}


def relaxed(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Return a relaxed Bernoulli sample σ((log u − log(1 − u) + logit)/T), divided by its mean."""
    uniform = torch.rand(logits.shape, generator=generator).clamp_(1e-6, 1 - 1e-6).to(logits.device)
    mask = torch.sigmoid((uniform.log() - (-uniform).log1p() + logits) / temperature)
    return mask / mask.mean().clamp_min(1e-6)


def summed(updates: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    """Return Σ_k τ_k of one tensor."""
    return torch.stack([update[name] for update in updates]).sum(0)


def learn_mask(
    base: Mapping[str, Tensor],
    updates: Sequence[Mapping[str, Tensor]],
    tasks: Sequence[Seen],
    *,
    scale: float = 0.3,
    temperature: float = 0.5,
    descent: Descent | None = None,
) -> ConcreteMask:
    """Return Concrete's mask M: θ = θ_0 + λ Σ_k M ⊙ τ_k of least entropy, over random masks."""
    for task in tasks:
        check_classes(task, dict(base), "concrete")
    descent = descent or Descent(steps=2000)
    joint = {name: summed(updates, name) for name in base}
    logits = {name: torch.zeros_like(tensor, requires_grad=True) for name, tensor in joint.items()}
    generator = torch.Generator().manual_seed(derive_seed(descent.seed, "concrete"))

    def build() -> Vector:
        return {
            name: base[name] + scale * relaxed(logits[name], temperature, generator) * change
            for name, change in joint.items()
        }

    losses = descent.minimise(list(logits.values()), build, tasks)
    final = {name: value.detach() for name, value in logits.items()}
    return ConcreteMask(final, scale, temperature, descent.seed, losses)
