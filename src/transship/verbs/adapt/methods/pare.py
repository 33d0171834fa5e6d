"""PaRe: patch replacement between source and target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transship.numerics import derive_seed
from transship.verbs.adapt.train.problem import AdaptMethod, Index, LearningProblem, Objective


@dataclass(frozen=True, kw_only=True)
class Pare(AdaptMethod):
    """Train on mixtures in which the best-gated source patches stand for the worst-gated target patches.

    A gate sigmoid(Linear(d, 1)) scores patches of both sides. The N − k target patches of the highest gate
    stay, the k vacated places take the k best source patches (Gumbel top-k in the first part of the
    training), and k falls to its end. Loss: ℓ(target) + weight·[(1 − λ) ℓ(mixture, z') + λ CE(mixture, z)]
    with λ = k/N and a second linear head for source labels; the source's embedding is frozen. Two body
    passes per step. Before a text backbone λ falls from 0.5 to 0 at weight 0.1; before a vision backbone
    from 0.64 to 0.16 (dense targets: from 0.32) at weight 1, the 2000 (1000) to 500 of 3136 patches of its
    authors.

    Attributes:
        start_share: λ at the start; none goes by the backbone.
        end_share: λ at the end; none goes by the backbone.
        weight: of the mixture's losses; none goes by the backbone.
        temperature: of the Gumbel noise.
        noisy_share: share of the training in which the choice of patches is drawn, not taken.
    """

    paper: ClassVar[str] = (
        'Cai et al., "Enhancing Cross-Modal Fine-Tuning with Gradually Intermediate Modality Generation" '
        "(ICML 2024)"
    )
    needs_source: ClassVar[bool] = True
    start_share: float | None = None
    end_share: float | None = None
    weight: float | None = None
    temperature: float = 0.9
    noisy_share: float = 0.3

    def recipe(self, *, vision: bool, dense: bool) -> tuple[float, float, float]:
        """Return λ at the start, λ at the end and the weight: as told, or by backbone and task."""
        usual = (0.5, 0.0, 0.1) if not vision else (0.32 if dense else 0.64, 0.16, 1.0)
        own = (self.start_share, self.end_share, self.weight)
        start, end, weight = (usual[place] if share is None else share for place, share in enumerate(own))
        return start, end, weight

    def objective(self, problem: LearningProblem) -> Objective:
        """Return the loss of stage 2."""
        return PatchReplacement(problem, self)


class PatchReplacement(Objective):
    """The loss; gate and source head learn beside the network."""

    def __init__(self, problem: LearningProblem, method: Pare) -> None:
        super().__init__(problem)
        self.method, source = method, problem.known
        self.start, self.end, self.weight = method.recipe(
            vision=problem.backbone.reads == "vision", dense=problem.train.targets.dim() > 2
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(problem.seed, "pare"))
            self.gate = nn.Linear(problem.backbone.theta.width, 1).to(problem.device)
            self.head = nn.Linear(source.weight.shape[1], source.classes).to(problem.device)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield gate and source head."""
        yield from (("gate", self.gate), ("source_head", self.head))

    def loss(self, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return ℓ(target) + weight·mixture."""
        problem, method = self.problem, self.method
        tokens = problem.embedded(index)
        total = problem.target_loss(problem.network.head(problem.network.states(tokens)), index)
        count = tokens.shape[1]
        share = self.start + (self.end - self.start) * step / max(1, steps - 1)
        replaced = round(share * count)
        if not replaced:
            return total
        generator = np.random.default_rng(derive_seed(problem.seed, "pare", step))
        items = generator.integers(0, len(problem.known.labels), len(index))
        source, mask = problem.source_tokens(items.tolist())
        replaced = min(replaced, int(mask.sum(1).min()))
        noisy = step < method.noisy_share * steps
        mixed = self.mix(tokens, source, mask, replaced, generator if noisy else None)
        states = problem.network.states(mixed)
        lam = replaced / count
        target = problem.target_loss(problem.network.head(states), index)
        labels = problem.known.labels[torch.from_numpy(items)].to(states.device)
        known = functional.cross_entropy(self.head(states.mean(1)), labels)
        return total + self.weight * ((1.0 - lam) * target + lam * known)

    def mix(
        self, tokens: Tensor, source: Tensor, mask: Tensor, count: int, generator: np.random.Generator | None
    ) -> Float[Tensor, "batch tokens width"]:
        """Put the `count` best source patches in the places of the `count` worst target patches."""
        target_gate = torch.sigmoid(self.gate(tokens))
        source_gate = torch.sigmoid(self.gate(source))
        out = self._scores(target_gate, generator).argsort(1)[:, :count]
        scores = self._scores(source_gate, generator).masked_fill(~mask, float("-inf"))
        best = scores.topk(count, 1).indices
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        # straight through: a factor of one whose slope is the gate's, so that the gate learns
        through = tokens * (1.0 + target_gate - target_gate.detach())
        chosen = source[rows, best] * (1.0 + source_gate - source_gate.detach())[rows, best]
        mixed = through.clone()
        mixed[rows, out] = chosen
        return mixed

    def _scores(self, gate: Tensor, generator: np.random.Generator | None) -> Tensor:
        scores = gate.detach().squeeze(2).clamp(1e-6, 1 - 1e-6).log()
        if generator is None:
            return scores
        noise = torch.from_numpy(generator.gumbel(size=tuple(scores.shape))).to(scores)
        return scores / self.method.temperature + noise
