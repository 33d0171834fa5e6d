"""Concrete task arithmetic: one mask for all updates, learnt without labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transship.numerics import derive_seed
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.methods._entropy import EntropyMethod, Weights
from transship.verbs.merge.protocol import TaskView


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

    def mix(
        self,
        base: Weights,
        updates: Sequence[Weights],
        tasks: Sequence[TaskView],
        seed: int = 0,
        progress: Progress = quiet,
    ) -> tuple[Vector, list[float]]:
        """Return λ M ⊙ Σ τ_k with the mask drawn in the end, and the loss of every step."""
        self._check(tasks, base)
        total = {name: torch.stack([update[name] for update in updates]).sum(0) for name in base}
        logits = {name: torch.zeros_like(tensor, requires_grad=True) for name, tensor in total.items()}
        generator = torch.Generator().manual_seed(derive_seed(seed, "concrete"))

        def masked(name: str, draws: torch.Generator) -> Tensor:
            return self.scale * relaxed(logits[name], self.temperature, draws) * total[name]

        def build() -> Vector:
            return {name: base[name] + masked(name, generator) for name in base}

        losses = self.descend(list(logits.values()), build, tasks, seed, progress)
        with torch.no_grad():
            seeds = {name: derive_seed(seed, "concrete", name) for name in base}
            final = {name: masked(name, torch.Generator().manual_seed(key)) for name, key in seeds.items()}
        return final, losses


def relaxed(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Return a relaxed Bernoulli sample σ((log u − log(1 − u) + logit)/T), divided by its mean."""
    uniform = torch.rand(logits.shape, generator=generator).clamp_(1e-6, 1 - 1e-6).to(logits.device)
    mask = torch.sigmoid((uniform.log() - (-uniform).log1p() + logits) / temperature)
    return mask / mask.mean().clamp_min(1e-6)
