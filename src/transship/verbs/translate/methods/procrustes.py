"""Orthogonal Procrustes: a rotation between two spaces, with a scale and the two means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import scipy.linalg
import torch
from torch import Tensor

from transship.geometry import LinearMap, Moments, procrustes
from transship.geometry.moments import Part
from transship.verbs.translate.linear import LinearTranslator, live_features

# float32 rows give products that are known to some 1e-6: below this share a singular value is rounding
SINGLE_CUT = 1e-5
# rows behind the one factor c of float32 fits: it is a mean, and a few hundred rows give it to a per mille
FACTOR_ROWS = 256
CROSS: tuple[Part, ...] = ("ab",)


@dataclass(kw_only=True, eq=False, repr=False)
class Procrustes(LinearTranslator):
    """Rotate one space onto the other: the semi-orthogonal map nearest to the anchors.

    y = μ_y + c (x − μ_x) R with R = U Vᵀ of the thin S_xy = U Σ Vᵀ, between any two widths; no feature is
    divided by its spread, and constant target features stay constant. A space that is rotated, scaled and
    shifted is recovered exactly. The way back is Rᵀ with a factor of its own. float32 rows are decomposed in
    float32 (c over some 256 of them), all others, and those that leave directions open, in float64.

    Attributes:
        centre: whether the means are removed first and the target's is put back.
        scale: whether R is multiplied by the least-squares factor c.
    """

    paper: ClassVar[str] = "Maiorca et al., Latent Space Translation via Semantic Alignment"

    centre: bool = True
    scale: bool = True

    def _fit(self, source: Tensor, target: Tensor) -> None:
        if source.dtype == target.dtype == torch.float32 and self._fit_single(source, target):
            return
        super()._fit(source, target)

    def _fit_single(self, source: Tensor, target: Tensor) -> bool:
        """Fit in float32, one decomposition for both directions; False when it needs more care."""
        moments = Moments.of(source, target, parts=CROSS, name=self.map_name)
        if not all(bool(live_features(side).all()) for side in (moments, moments.swapped())):
            return False
        used = moments.centred() if self.centre else moments
        u, values, vt = scipy.linalg.svd(
            used.part("ab").float().numpy(), full_matrices=False, check_finite=False
        )
        if not values[-1] > SINGLE_CUT * values[0]:
            return False
        rotation = torch.from_numpy(u @ vt)
        means = (
            (moments.sum_a / moments.count, moments.sum_b / moments.count) if self.centre else (None, None)
        )
        details = {"conditioning": float(values[-1] / values[0])}
        maps = []
        for rows, others, matrix, ends in (
            (source, target, rotation, means),
            (target, source, rotation.T, means[::-1]),
        ):
            factor = _factor(rows, others, matrix, *ends) if self.scale else 1.0
            weights = (matrix * factor).double()
            maps.append(
                LinearMap(
                    weights,
                    ends[0],
                    ends[1],
                    "procrustes",
                    len(values),
                    SINGLE_CUT,
                    details | {"scale": factor},
                )
            )
        self._keep(maps[0], maps[1], moments)
        return True

    def _solve(self, moments: Moments) -> LinearMap:
        return procrustes(moments, centre=self.centre, scale=self.scale)


def _factor(rows: Tensor, others: Tensor, matrix: Tensor, mean: Tensor | None, other: Tensor | None) -> float:
    """Return c = ⟨X R, Y⟩ / ‖X R‖², about the means, over rows spread evenly when there are many."""
    step = max(1, len(rows) // FACTOR_ROWS)
    moved, wanted = rows[::step], others[::step]
    if mean is not None and other is not None:
        moved, wanted = moved - mean.float(), wanted - other.float()
    moved = moved @ matrix
    square = float(moved.square().sum(dtype=torch.float64))
    return float((moved * wanted).sum(dtype=torch.float64)) / square if square > 0 else 1.0
