"""MoNA, as we read its description."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from transship.numerics import derive_seed
from transship.verbs.adapt.model.network import Part
from transship.verbs.adapt.model.recalibrate import source_grid
from transship.verbs.adapt.train.problem import AdaptMethod, Index, LearningProblem, Objective, Phase


@dataclass(frozen=True, kw_only=True)
class Mona(AdaptMethod):
    """Move the embedder so that a body fitted to the target still knows the source (our reading of MoNA).

    Its authors released no code and describe a bilevel problem. Ours: the inner step is one SGD step of body
    and head on the target loss; the outer loss, differentiated through that step into the embedder, is the
    *updated* body's cross-entropy on source data (through the source head, which stays) plus its target
    loss. Then everything is trained on the target.

    Attributes:
        steps: outer steps.
        rate: Adam's learning rate of the embedder and the head.
        inner_rate: of the inner SGD step.
        batch: rows per step, half for the inner loss and half for the outer.
        source_items: source items per outer step.
        source_weight: of the source's cross-entropy in the outer loss.
    """

    paper: ClassVar[str] = (
        'our reading of Ma et al., "Learning Modality Knowledge Alignment for Cross-Modality Transfer" (2024)'
    )
    needs_source: ClassVar[bool] = True
    uses_omega: ClassVar[bool] = True
    steps: int = 24
    rate: float = 1e-3
    inner_rate: float = 1e-2
    batch: int = 32
    source_items: int = 16
    source_weight: float = 1.0

    def phases(self) -> Sequence[Phase]:
        parts: frozenset[Part] = frozenset({"embedder", "head"})
        outer = partial(Bilevel, method=self)
        return [Phase("bilevel", self.steps, self.rate, self.batch, outer, parts)]


class Bilevel(Objective):
    """The outer loss, differentiated through one inner step."""

    def __init__(self, problem: LearningProblem, method: Mona) -> None:
        super().__init__(problem)
        self.method = method

    def loss(self, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return source CE and target loss of the body after the inner step."""
        half = max(1, len(index) // 2)
        inner, outer = index[:half], index[half:] if len(index) > half else index[:half]
        network = self.problem.network
        # the body is frozen in this phase: its weights enter as tensors of their own
        weights = {
            name: value.detach().clone().requires_grad_(True)
            for name, value in network.body.named_parameters()
        }
        head: dict[str, Tensor] = dict(network.head.named_parameters())
        # the fused attention kernels have no second derivative
        with sdpa_kernel(SDPBackend.MATH):
            first = self.problem.target_loss(self._outputs(inner, weights, head), inner)
            names, values = zip(
                *[*weights.items(), *((f"head.{k}", v) for k, v in head.items())], strict=True
            )
            slopes = torch.autograd.grad(first, values, create_graph=True, allow_unused=True)
            moved = {
                name: value if slope is None else value - self.method.inner_rate * slope
                for name, value, slope in zip(names, values, slopes, strict=True)
            }
            new_head = {
                name.removeprefix("head."): v for name, v in moved.items() if name.startswith("head.")
            }
            new_body = {name: v for name, v in moved.items() if not name.startswith("head.")}
            target = self.problem.target_loss(self._outputs(outer, new_body, new_head), outer)
            return target + self.method.source_weight * self._source(new_body, step)

    def _outputs(self, index: Index, body: dict[str, Tensor], head: dict[str, Tensor]) -> Tensor:
        network = self.problem.network
        tokens = self.problem.embedded(index)
        states = functional_call(network.body, body, (tokens, None, network.embedder.shape.grid))
        outputs: Tensor = functional_call(network.head, head, (states,))
        return outputs

    def _source(self, body: dict[str, Tensor], step: int) -> Float[Tensor, ""]:
        problem, source = self.problem, self.problem.known
        generator = np.random.default_rng(derive_seed(problem.seed, "mona", step))
        items = generator.integers(0, len(source.labels), self.method.source_items)
        tokens, mask = problem.source_tokens(items.tolist())
        states: Tensor = functional_call(
            problem.network.body, body, (tokens, mask, source_grid(problem.backbone))
        )
        share = (
            mask.to(states.dtype) if mask.shape[1] == states.shape[1] else states.new_ones(states.shape[:2])
        )
        means = torch.einsum("itw,it->iw", states, share / share.sum(1, keepdim=True))
        logits = functional.linear(means, source.weight.to(means), source.bias.to(means))
        return functional.cross_entropy(logits, source.labels[torch.from_numpy(items)].to(logits.device))
