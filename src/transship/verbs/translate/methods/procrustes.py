"""Orthogonal Procrustes: a rotation between two spaces, with a scale and the two means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from transship.geometry import LinearMap, Moments, procrustes
from transship.geometry.moments import Part
from transship.verbs.translate.maps.base import LinearTranslator, live_features

# float32 rows give products that are known to some 1e-6: below this share a singular value is rounding
SINGLE_CUT = 1e-5
# rows behind the one factor c of the float32 map into the narrower space
FACTOR_ROWS = 256
CROSS: tuple[Part, ...] = ("ab",)


@dataclass(kw_only=True, eq=False, repr=False)
class Procrustes(LinearTranslator):
    """Rotate one space onto the other: the semi-orthogonal map nearest to the anchors.

    y = μ_y + c (x − μ_x) R with R = U Vᵀ of the thin S_xy = U Σ Vᵀ, between any two widths; no feature is
    divided by its spread, and constant target features stay constant. A space that is rotated, scaled and
    shifted is recovered exactly. The way back is Rᵀ with a factor of its own. float32 rows are decomposed in
    float32 (into the narrower space c is taken over some 256 of them), all others, and those that leave
    directions open, in float64.

    Attributes:
        centre: whether the means are removed first and the target's is put back.
        scale: whether R is multiplied by the least-squares factor c.
    """

    paper: ClassVar[str] = "Maiorca et al., Latent Space Translation via Semantic Alignment"
    place_in_auto: ClassVar[int | None] = 1

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
        fit, maps = float(values.sum(dtype=np.float64)), []
        for rows, square, matrix, ends in (
            (source, used.square_a, rotation, means),
            (target, used.square_b, rotation.T, means[::-1]),
        ):
            factor = fit / _moved_square(rows, square, matrix, ends[0]) if self.scale else 1.0
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


def _moved_square(rows: Tensor, square: Tensor, matrix: Tensor, mean: Tensor | None) -> float:
    """Return ‖X R‖² about the mean; with ⟨X R, Y⟩ = Σ σ it gives the factor c = Σ σ / ‖X R‖².

    An R with orthonormal rows keeps lengths, so that the sum of squares is known. Else some rows are moved,
    spread evenly, and count for all: c is one mean, and 256 rows give it to a per mille.
    """
    if matrix.shape[0] <= matrix.shape[1]:
        return float(square.sum())
    some = rows[:: max(1, len(rows) // FACTOR_ROWS)]
    some = some if mean is None else some - mean.float()
    kept, whole = (float(part.square().sum(dtype=torch.float64)) for part in (some @ matrix, some))
    return float(square.sum()) * kept / whole if whole > 0 else 1.0
