"""What a phase of training minimises: one small class each, with the state that a resumed run needs."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transship.geometry import cost_matrix, sinkhorn_cost
from transship.numerics import derive_seed
from transship.verbs.adapt.model.network import pooled
from transship.verbs.adapt.train.learner import Bench
from transship.verbs.adapt.train.losses import Alignment, LabelTable

Index = Int[Tensor, " batch"]


class Objective:
    """Something to minimise, batch by batch."""

    def begin(self, bench: Bench) -> None:
        """Get ready: called once before the first step."""

    def loss(self, bench: Bench, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return the loss of a batch of training rows."""
        raise TypeError(f"{type(self).__name__} defines no loss")

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield what learns beside the network."""
        yield from ()

    def state(self) -> dict[str, Tensor]:
        """Return tensors for a resumed run."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from `state`."""


class TargetLoss(Objective):
    """The task's own loss: stage 2, and the supervised warm-up of φ when the body is frozen."""

    def loss(self, bench: Bench, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return ℓ(head(body(φ(x))), z')."""
        return bench.target_loss(bench.network(bench.inputs(index)), index)


class FeatureAlignment(Objective):
    """ω·W₁ between token means of φ(x) and of the source, Eq. (14); the body is not run."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def begin(self, bench: Bench) -> None:
        """Take the source's features."""
        self.alignment = Alignment(bench.known.features.to(bench.device))

    def loss(self, bench: Bench, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return ω·W₁ of the batch."""
        return self.of(bench, bench.embedded(index))

    def of(self, bench: Bench, tokens: Tensor) -> Float[Tensor, ""]:
        """Return ω·W₁ of embedded tokens."""
        return self.weight * bench.known.omega * self.alignment(pooled(tokens).float())

    def state(self) -> dict[str, Tensor]:
        """Return the potentials."""
        return self.alignment.state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from these potentials."""
        self.alignment.load(state)


class LabelDistortion(Objective):
    """H[Z'|Z] by the soft joint table, Eqs. (18)–(21); with `alignment` beside it, Eq. (22).

    The source (body and head) is frozen; the gradient flows through it into φ.
    """

    def __init__(self, *, alignment: float = 0.0, decay: float = 0.8, most: int = 2048) -> None:
        self.decay, self.most = decay, most
        self.beside = FeatureAlignment(alignment) if alignment > 0 else None

    def begin(self, bench: Bench) -> None:
        """Fill the table from the whole set."""
        self.table = LabelTable(bench.train.codes, bench.classes, decay=self.decay, most=self.most)
        index = bench.draw(self.most, "table")
        found = bench.views(bench.train, index).source
        assert found is not None
        self.table.fill(found, index)
        if self.beside is not None:
            self.beside.begin(bench)

    def loss(self, bench: Bench, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return the batch's share of FLD, with ω·W₁ beside it where asked for."""
        tokens = bench.embedded(index)
        made = self.table.loss(bench.source_probabilities(tokens).float().cpu(), index)
        if self.beside is not None:
            made = made + self.beside.of(bench, tokens).to(made.device)
        return made

    def state(self) -> dict[str, Tensor]:
        """Return table and potentials."""
        beside = {} if self.beside is None else self.beside.state()
        return self.table.state() | {f"beside.{name}": value for name, value in beside.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from these."""
        self.table.load(state)
        if self.beside is not None:
            prefix = "beside."
            self.beside.load({name[len(prefix) :]: v for name, v in state.items() if name.startswith(prefix)})


class DatasetDistance(Objective):
    """Optimal transport dataset distance between each target class and the labelled source (ORCA's stage 1).

    Ground cost ½‖x − x'‖² + ½W₂²(α_y, α_y'), α_y the features of class y as Gaussians with diagonal
    covariances, so that W₂² = ‖μ − μ'‖² + ‖σ − σ'‖²; outer transport entropic and debiased, one absolute ε.
    At most `per_class` rows of each class are embedded; classes are weighted by their share of all rows.
    """

    def __init__(self, *, source_items: int = 1000, per_class: int = 128) -> None:
        self.source_items, self.per_class = source_items, per_class

    def begin(self, bench: Bench) -> None:
        """Take source features and the Gaussians of their classes."""
        source = bench.known
        order = np.random.default_rng(derive_seed(bench.seed, "otdd")).permutation(len(source.labels))
        rows = torch.from_numpy(np.sort(order[: self.source_items]))
        self.features, self.labels = source.features[rows].to(bench.device), source.labels[rows]
        groups = [source.features[source.labels == label] for label in range(source.classes)]
        self.means = torch.stack([group.mean(0) for group in groups]).to(bench.device)
        self.spreads = torch.stack([group.std(0, unbiased=False) for group in groups]).to(bench.device)

    def loss(self, bench: Bench, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return Σ_c (n_c/n)·OTDD(some rows of class c, source)."""
        codes = bench.train.codes[index]
        total = torch.zeros((), device=bench.device)
        for code in torch.unique(codes).tolist():
            rows = index[codes == code]
            features = pooled(bench.embedded(rows[: self.per_class])).float()
            total = total + len(rows) / len(index) * self._distance(features)
        return total

    def _distance(self, rows: Float[Tensor, "inputs width"]) -> Float[Tensor, ""]:
        spread = (rows.var(0, unbiased=False) + 1e-12).sqrt()
        label = (rows.mean(0) - self.means).square().sum(1) + (spread - self.spreads).square().sum(1)
        cross = 0.5 * cost_matrix(rows, self.features) + 0.5 * label[self.labels]
        found = sinkhorn_cost(cross, epsilon=0.05, iterations=100, tolerance=1e-3)
        own = sinkhorn_cost(
            0.5 * cost_matrix(rows, rows),
            epsilon=found.epsilon,
            relative=False,
            iterations=100,
            tolerance=1e-3,
            symmetric=True,
        )
        # the third term, source against source, does not depend on φ
        return found.value - 0.5 * own.value


__all__ = [
    "DatasetDistance",
    "FeatureAlignment",
    "LabelDistortion",
    "Objective",
    "TargetLoss",
]
