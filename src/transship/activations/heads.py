"""The carried head: a linear readout in closed form, from features onto what another model says.

It is fitted without labels, by ridge about the means. `carry` fits rows in memory. `HeadRows` takes rows as
they come, and `carried_over` runs through them in batches: they stay in memory while they are few, so that λ
is chosen by leaving each one out. Of more, only sums are kept. A launch of several processes fits on the rows
of all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transship import parallel
from transship.activations.batches import summed
from transship.geometry import LinearMap, Moments, ridge, ridge_of

# Beyond so many rows the sums say as much about λ, and leaving each row out costs more than it tells.
ROWS_KEPT = 8192


@dataclass(frozen=True, eq=False)
class LinearHead:
    """outputs = features Wᵀ + b.

    Attributes:
        weight: W.
        bias: b, or None where the model's own head has none.
    """

    weight: Float[Tensor, "outputs width"]
    bias: Float[Tensor, " outputs"] | None = None

    def __call__(self, features: Float[Tensor, "inputs width"]) -> Float[Tensor, "inputs outputs"]:
        bias = None if self.bias is None else self.bias.to(features)
        return functional.linear(features, self.weight.to(features), bias)

    @classmethod
    def of(cls, fitted: LinearMap) -> "LinearHead":
        """Return a fitted map as a Linear holds it, in float32."""
        weight = fitted.matrix.T.float().contiguous()
        return cls(weight, None if fitted.bias is None else fitted.bias.float())

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def linear(self) -> nn.Linear:
        """Return a module with these weights; a missing bias is zero."""
        linear = nn.Linear(self.weight.shape[1], self.weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(self.weight)
            linear.bias.copy_(torch.zeros(len(self.weight)) if self.bias is None else self.bias)
        return linear


def carry(
    features: Float[Tensor, "rows width"],
    outputs: Float[Tensor, "rows outputs"],
    strength: float | None = None,
    *,
    centre: bool = True,
    name: str = "carried head",
) -> LinearMap:
    """Return the ridge map from features in memory onto the outputs of the model that knows.

    Args:
        features: of the model that gets the head.
        outputs: of the model that knows, on the same inputs.
        strength: λ as a share of the features' mean variance; None chooses it by exact leave-one-out.
        centre: whether the head has a bias.
        name: of the features, for messages.
    """
    return ridge_of(features, outputs.to(features), strength, centre=centre, name=name)


def carried_over(batches: Iterable[tuple[Tensor, Tensor]], name: str) -> LinearMap:
    """Return the same from (features, outputs) of batch after batch; several processes give their shares."""
    rows = HeadRows(name)
    with torch.no_grad():
        for features, outputs in batches:
            rows.add(features, outputs)
    return rows.fit()


@dataclass(eq=False)
class HeadRows:
    """Features, and the outputs wanted of them, as they come.

    Attributes:
        name: of the features, for messages.
        features: [rows, width] per call of `add`.
        outputs: [rows, outputs] likewise.
        moments: of all rows, once they are too many to keep.
        count: the rows so far.
    """

    name: str
    features: list[Float[Tensor, "_ width"]] = field(default_factory=list)
    outputs: list[Float[Tensor, "_ outputs"]] = field(default_factory=list)
    moments: Moments | None = None
    count: int = 0

    def add(self, features: Float[Tensor, "rows width"], outputs: Float[Tensor, "rows outputs"]) -> None:
        self.features.append(features.float().cpu())
        self.outputs.append(outputs.float().cpu())
        self.count += len(features)
        if self.count > ROWS_KEPT:
            self._sum_up()

    def fit(self, strength: float | None = None, *, centre: bool = True) -> LinearMap:
        """Return the ridge map from features to outputs: λ given as a share of the mean variance, or chosen.

        Args:
            strength: of λ; None leaves every row out of at most `ROWS_KEPT`, and takes the least GCV of more.
            centre: whether the head has a bias.
        """
        if strength is not None or sum(parallel.gather(self.count)) > ROWS_KEPT:
            self._sum_up()
            return ridge(summed(self.moments), strength, centre=centre)
        shares = parallel.gather((self.features, self.outputs))
        features, outputs = (torch.cat([part for share in shares for part in share[side]]) for side in (0, 1))
        return carry(features, outputs, centre=centre, name=self.name)

    def _sum_up(self) -> None:
        for features, outputs in zip(self.features, self.outputs, strict=True):
            if self.moments is None:
                shape = features.shape[1], outputs.shape[1]
                self.moments = Moments.zeros(*shape, parts=("aa", "ab"), name=self.name)
            self.moments.update(features, outputs, exact=True)
        self.features, self.outputs = [], []
