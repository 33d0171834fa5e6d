"""The carried head: a linear readout in closed form, from features onto what another model says.

Rows stay in memory while they are few, so that λ is chosen by leaving each one out; of more, only sums are
kept. A launch of several processes fits on the rows of all of them.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from transship import parallel
from transship.activations.shards import summed
from transship.geometry import LinearMap, Moments, ridge, ridge_of

# Beyond so many rows the sums say as much about λ, and leaving each row out costs more than it tells.
ROWS_KEPT = 8192


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
        """Add rows."""
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
        return ridge_of(features, outputs, centre=centre, name=self.name)

    def _sum_up(self) -> None:
        for features, outputs in zip(self.features, self.outputs, strict=True):
            if self.moments is None:
                shape = features.shape[1], outputs.shape[1]
                self.moments = Moments.zeros(*shape, parts=("aa", "ab"), name=self.name)
            self.moments.update(features, outputs, exact=True)
        self.features, self.outputs = [], []
