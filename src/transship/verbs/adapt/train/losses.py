"""The terms of stage 1 and the losses of stage 2, on tensors alone. Entropies are in nats.

Equations are those of Tran et al., "Rethinking Cross-Modal Fine-Tuning: Optimizing the Interaction between
Feature Alignment and Target Fitting" (RECRAFT).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from transship.errors import OptionError
from transship.geometry import sinkhorn, sinkhorn_cost, wasserstein_exact

_LEAST = 1e-12  # under a logarithm


def soft_table(
    source: Float[Tensor, "inputs source"], codes: Int[Tensor, " inputs"], classes: int
) -> Float[Tensor, "source classes"]:
    """Return J(z, z') = (1/n) Σ_i p_s(z|u_i) 1[z'_i = z'], the expectation of the counts of Eq. (19).

    Counts of drawn labels have no gradient; their expectation has one, and equals them for one-hot p_s.
    """
    chosen = functional.one_hot(codes, classes).to(source.dtype)
    return source.T @ chosen / len(source)


def entropy(table: Tensor) -> Float[Tensor, ""]:
    """Return H = −Σ p log p."""
    return -(table * table.clamp_min(_LEAST).log()).sum()


def conditional_entropy(table: Float[Tensor, "source classes"]) -> Float[Tensor, ""]:
    """Return H[Z'|Z] = H(J) − H(row sums), Eq. (21)."""
    return entropy(table) - entropy(table.sum(1))


def distortion(
    source: Float[Tensor, "inputs source"], codes: Int[Tensor, " inputs"], classes: int
) -> Float[Tensor, ""]:
    """Return FLD of a whole set, Eq. (20).

    How uncertain the target label stays when the source label is known.
    """
    return conditional_entropy(soft_table(source, codes, classes))


def transition(
    table: Float[Tensor, "source classes"], smooth: float = 0.0
) -> Float[Tensor, "source classes"]:
    """Return Λ(z'|z) = J(z, z') / J(z); `smooth` of the marginal of z' is mixed into every row."""
    rows = table.sum(1, keepdim=True)
    marginal = table.sum(0, keepdim=True) / table.sum().clamp_min(_LEAST)
    return (table + smooth * marginal) / (rows + smooth).clamp_min(_LEAST)


def table_loss(
    source: Float[Tensor, "inputs source"],
    codes: Int[Tensor, " inputs"],
    table: Float[Tensor, "source classes"],
) -> Float[Tensor, ""]:
    """Return mean_i Σ_z p_s(z|u_i) · (−log Λ(z'_i|z)), with Λ from a table that takes no gradient.

    ∂H[Z'|Z]/∂J(z,z') = −log Λ(z'|z), so with the whole set's table this has FLD's own gradient for any batch,
    and FLD's own value on the whole set.
    """
    costs = -transition(table.detach()).clamp_min(_LEAST).log()
    return (source * costs[:, codes].T).sum(1).mean()


class LabelTable:
    """The joint table of source and target labels while φ moves.

    Up to `most` inputs it remembers the last p_s of each one, so that it is the whole set's table but for how
    far φ moved since; above, it moves: J ← decay·J + (1 − decay)·(batch).
    """

    def __init__(
        self, codes: Int[Tensor, " inputs"], classes: int, *, decay: float = 0.8, most: int = 2048
    ) -> None:
        self.codes, self.classes, self.decay = codes, classes, decay
        self.remembers = len(codes) <= most
        self.rows: Tensor | None = None
        self.table: Tensor | None = None

    def fill(self, source: Float[Tensor, "inputs source"], index: Int[Tensor, " inputs"]) -> None:
        """Begin from p_s of the whole set (or of what stands for it)."""
        self.table = soft_table(source, self.codes[index], self.classes)
        self.rows = source.clone() if self.remembers else None

    @torch.no_grad()
    def update(self, source: Float[Tensor, "inputs source"], index: Int[Tensor, " inputs"]) -> Tensor:
        """Take in the p_s of a batch; return the table."""
        assert self.table is not None
        if self.rows is not None:
            old = self.rows[index]
            share = len(index) / len(self.rows)
            change = soft_table(source - old, self.codes[index], self.classes)
            self.table = (self.table + share * change).clamp_min(0.0)
            self.rows[index] = source
        else:
            batch = soft_table(source, self.codes[index], self.classes)
            self.table = self.decay * self.table + (1 - self.decay) * batch
        return self.table

    def loss(
        self, source: Float[Tensor, "inputs source"], index: Int[Tensor, " inputs"]
    ) -> Float[Tensor, ""]:
        """Update by the batch, then return its share of FLD."""
        return table_loss(source, self.codes[index], self.update(source.detach(), index))

    def state(self) -> dict[str, Tensor]:
        tensors = {"table": self.table, "rows": self.rows}
        return {name: value for name, value in tensors.items() if value is not None}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from `state`."""
        self.table, self.rows = state.get("table"), state.get("rows")


class SinkhornAlignment:
    """W₁ between features of the target and those of the source, Eq. (14), with Sinkhorn's envelope gradient.

    The plan of one step starts from the potentials of the step before, so that a few iterations do.

    Attributes:
        iterations: the most per step.
    """

    def __init__(
        self, source: Float[Tensor, "source width"], *, epsilon: float = 0.05, iterations: int = 60
    ) -> None:
        self.source, self.epsilon, self.iterations = source, epsilon, iterations
        self._mean = source.mean(0)
        self._centred = source - self._mean
        self._squares = self._centred.square().sum(1)
        self._source: Tensor | None = None

    def __call__(self, features: Float[Tensor, "inputs width"]) -> Float[Tensor, ""]:
        """Return ⟨P, C⟩ with C_ij = ‖y_i − x_j‖ and P the entropic plan."""
        # the source is the first side: the solver goes on from the first potential, and the source stays
        start = None if self._source is None else (self._source, features.new_zeros(len(features)))
        solution = sinkhorn_cost(
            self._distances(features),
            epsilon=self.epsilon,
            iterations=self.iterations,
            tolerance=1e-3,
            start=start,
        )
        self._source = solution.potentials[0]
        return solution.cost

    def _distances(self, features: Tensor) -> Float[Tensor, "source inputs"]:
        """Distances in float32 about the source's mean; 1e-12 under the root, which has no slope at 0."""
        moved = features - self._mean
        squares = moved.square().sum(1) + self._squares[:, None]
        return torch.addmm(squares, self._centred, moved.T, alpha=-2.0).clamp_min(_LEAST).sqrt()

    def state(self) -> dict[str, Tensor]:
        return {} if self._source is None else {"potential": self._source}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from `state`."""
        self._source = state.get("potential")


def transport_distance(x: Float[Tensor, "n width"], y: Float[Tensor, "m width"]) -> float:
    """Return W₁ for a log: exact for small equal sets, else entropic at 0.01 of the mean cost (⟨P, C⟩)."""
    with torch.no_grad():
        if len(x) == len(y) and len(x) <= 256:
            return float(wasserstein_exact(x, y))
        solution = sinkhorn(x, y, epsilon=0.01, cost="euclidean", iterations=300, tolerance=1e-4)
        return float((solution.plan * solution.matrix).sum())


def spread(features: Float[Tensor, "inputs width"]) -> float:
    """Return the root of the mean variance between inputs."""
    return float(features.double().var(0, unbiased=False).mean().sqrt())


@dataclass(frozen=True)
class Loss:
    """A loss of stage 2: of outputs against encoded targets, mean over the batch."""

    name: str
    tasks: tuple[str, ...]
    compute: Callable[[Tensor, Tensor, Any], Tensor]


def _relative(outputs: Tensor, targets: Tensor, scale: Any) -> Tensor:
    """‖p − t‖₂ / ‖t‖₂ per sample in the target's own units (nRMSE when everything is flattened)."""
    mean, std = scale
    wrong = ((outputs - targets) * std).flatten(1)
    right = (targets * std + mean).flatten(1)
    sizes = [part.square().sum(1).clamp_min(_LEAST).sqrt() for part in (wrong, right)]
    ratio: Tensor = (sizes[0] / sizes[1]).mean()
    return ratio


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("cross-entropy", ("classification",), lambda out, y, _: functional.cross_entropy(out, y)),
        Loss("bce", ("multilabel",), lambda out, y, _: functional.binary_cross_entropy_with_logits(out, y)),
        Loss("mse", ("regression", "dense"), lambda out, y, _: functional.mse_loss(out, y)),
        Loss("relative-l2", ("regression", "dense"), _relative),
        Loss("nrmse", ("regression", "dense"), _relative),
    )
}
RELATIVE = ("relative-l2", "nrmse")  # they divide by the size of each target
_USUAL = {
    "classification": "cross-entropy",
    "multilabel": "bce",
    "regression": "mse",
    "dense": "relative-l2",
}


def find_loss(name: str | None, task: str) -> Loss:
    """Return the loss of that name, or the usual one of the task."""
    loss = LOSSES.get(name or _USUAL[task])
    if loss is None or task not in loss.tasks:
        fitting = [loss.name for loss in LOSSES.values() if task in loss.tasks]
        raise OptionError(
            f"'{name}' is no loss of {task}", where="loss", fix=f"choose {' or '.join(fitting)}"
        )
    return loss
