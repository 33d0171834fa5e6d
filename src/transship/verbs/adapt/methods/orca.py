"""ORCA."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transship.geometry import cost_matrix, sinkhorn_cost
from transship.numerics import derive_seed
from transship.verbs.adapt.model.network import pooled
from transship.verbs.adapt.train.problem import AdaptMethod, Index, LearningProblem, Objective, Phase


@dataclass(frozen=True, kw_only=True)
class Orca(AdaptMethod):
    """Align each target class with the labelled source by optimal transport dataset distance, then train all.

    Label distances are those of Gaussians with diagonal covariances; classes of numeric targets are k-means
    codes.

    Attributes:
        steps: steps of alignment (the paper's epochs).
        rate: Adam's learning rate.
        per_class: the most rows of each class per step.
        source_items: source features per step.
    """

    paper: ClassVar[str] = 'Shen et al., "Cross-Modal Fine-Tuning: Align then Refine" (ICML 2023)'
    needs_source: ClassVar[bool] = True
    steps: int = 60
    rate: float = 3e-3
    per_class: int = 128
    source_items: int = 1000

    def phases(self) -> Sequence[Phase]:
        distance = partial(DatasetDistance, source_items=self.source_items, per_class=self.per_class)
        return [Phase("otdd", self.steps, self.rate, None, distance, shared=False)]


class DatasetDistance(Objective):
    """Optimal transport dataset distance between each target class and the labelled source.

    Ground cost ½‖x − x'‖² + ½W₂²(α_y, α_y'), α_y the features of class y as Gaussians with diagonal
    covariances, so that W₂² = ‖μ − μ'‖² + ‖σ − σ'‖²; outer transport entropic and debiased, one absolute ε.
    At most `per_class` rows of each class are embedded; classes are weighted by their share of all rows.
    """

    def __init__(self, problem: LearningProblem, *, source_items: int = 1000, per_class: int = 128) -> None:
        super().__init__(problem)
        self.per_class = per_class
        source, device = problem.known, problem.device
        order = np.random.default_rng(derive_seed(problem.seed, "otdd")).permutation(len(source.labels))
        rows = torch.from_numpy(np.sort(order[:source_items]))
        self.features, self.labels = source.features[rows].to(device), source.labels[rows]
        groups = [source.features[source.labels == label] for label in range(source.classes)]
        self.means = torch.stack([group.mean(0) for group in groups]).to(device)
        self.spreads = torch.stack([group.std(0, unbiased=False) for group in groups]).to(device)

    def loss(self, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return Σ_c (n_c/n)·OTDD(some rows of class c, source)."""
        codes = self.problem.train.codes[index]
        total = torch.zeros((), device=self.problem.device)
        for code in torch.unique(codes).tolist():
            rows = index[codes == code]
            features = pooled(self.problem.embedded(rows[: self.per_class])).float()
            total = total + len(rows) / len(index) * self.distance(features)
        return total

    def distance(self, rows: Float[Tensor, "inputs width"]) -> Float[Tensor, ""]:
        """Return OTDD between rows of one class and the source, but for a term that φ does not change."""
        spread = (rows.var(0, unbiased=False) + 1e-12).sqrt()
        label = (rows.mean(0) - self.means).square().sum(1) + (spread - self.spreads).square().sum(1)
        cross = 0.5 * cost_matrix(rows, self.features) + 0.5 * label[self.labels]
        outer = sinkhorn_cost(cross, epsilon=0.05, iterations=100, tolerance=1e-3)
        own = sinkhorn_cost(
            0.5 * cost_matrix(rows, rows),
            epsilon=outer.epsilon,
            relative=False,
            iterations=100,
            tolerance=1e-3,
            symmetric=True,
        )
        # the third term, source against source, does not depend on φ
        return outer.value - 0.5 * own.value
