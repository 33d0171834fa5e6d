"""Ridge regression between two spaces, λ chosen by exact leave-one-out: the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from transship.geometry import LinearMap, Moments, ridge, ridge_loo
from transship.verbs.translate.maps.base import DEAD, LinearTranslator, like, to_tensor
from transship.verbs.translate.maps.vectors import anchors_hash
from transship.verbs.translate.maps.wire import Agreement, Half, smoother_decoder

# λ / mean eigenvalue: the error is flat around its least, so half decades are fine enough
STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-8, 4))


@dataclass(kw_only=True, eq=False, repr=False)
class Ridge(LinearTranslator):
    """Map by ridge regression with an intercept, λ by exact leave-one-out: y = μ_y + (x − μ_x) W.

    W = (S_xx + λI)⁻¹ S_xy. Leave-one-out needs the rows and costs no refit; from Moments alone λ is chosen by
    generalised cross-validation. The leave-one-out predictions are an honest forecast of the map's quality.

    Attributes:
        alpha: λ, as scikit-learn's Ridge counts it, or how it is chosen: loo (gcv from Moments) or gcv.
    """

    paper: ClassVar[str] = "Hoerl and Kennard, Ridge regression"
    place_in_auto: ClassVar[int | None] = 2
    closed_form: ClassVar[bool] = True

    alpha: float | Literal["loo", "gcv"] = "loo"

    def _fit(self, source: Tensor, target: Tensor) -> None:
        moments = Moments.of(source, target, name=self.map_name)
        if self.alpha != "loo":
            self.fit_moments(moments)
            return
        # the way back takes λ from the Moments, which costs no further pass over the rows
        self._keep(
            ridge_loo(source, target, penalty_grid(source)).map, self._fit_live(moments.swapped()), moments
        )

    def _keep(self, forward: LinearMap, backward: LinearMap, moments: Moments) -> None:
        super()._keep(forward, backward, moments)
        self.alpha_ = self.details_["lambda"]

    def _solve(self, moments: Moments) -> LinearMap:
        return (
            ridge(moments)
            if isinstance(self.alpha, str)
            else ridge(moments, float(self.alpha), relative=False)
        )

    def leave_one_out(self, X: Any, y: Any) -> Any:  # noqa: N803 - scikit-learn's name
        """Return for each anchor the prediction of the map fitted on the others, at the chosen λ (alpha_)."""
        source, target = self._pairs(X, y, reset=False)
        return like(ridge_loo(source, target, [self.alpha_]).predictions, y)

    # -- two machines --------------------------------------------------------------------------------------

    def agree(self, anchors: Any, ids: Sequence[Any], other_width: int = 0) -> Agreement:
        """Return what both machines must know: the anchors and λ.

        λ cannot be tuned without the other side; unless alpha is a number, it is the anchors' mean squared
        distance from their mean, which leave-one-out chose within a factor of three wherever it was measured.
        The decoder's `leave_one_out` on the encoder's wire of the anchors says how good another λ is.
        """
        rows = to_tensor(check_array(anchors)).double()
        alpha = self.alpha
        if isinstance(alpha, str):
            alpha = float((rows - rows.mean(0)).square().sum(1).mean())
        return Agreement("ridge", {"alpha": alpha}, anchors_hash(ids), len(rows))

    def fit_encoder(self, anchors: Any, ids: Sequence[Any], agreement: Agreement) -> Half:
        """Return the half that turns source rows into weights per anchor: (x − μ)(XᵀX + λI)⁻¹Xᵀ."""
        agreement.check_ids(ids, "fit_encoder")
        rows = to_tensor(check_array(anchors)).double()
        mean, penalty = rows.mean(0), float(agreement.parameters["alpha"])
        centred = rows - mean
        values, vectors = torch.linalg.eigh(centred.T @ centred)
        weights = vectors @ ((vectors.T @ centred.T) / (values.clamp_min(0.0) + penalty)[:, None])
        return Half("encoder", agreement, {"mean": mean.numpy(), "matrix": weights.numpy()})

    def fit_decoder(self, anchors: Any, ids: Sequence[Any], agreement: Agreement) -> Half:
        """Return the half that turns weights per anchor into target rows: r (Y − μ) + μ, no inverse."""
        return smoother_decoder(anchors, ids, agreement)


def penalty_grid(source: Tensor) -> list[float]:
    """Return the λ that leave-one-out compares: half decades around the mean eigenvalue of the source."""
    variances = source.double().var(0, correction=0)
    live = variances > DEAD**2 * variances.mean()
    # a source without spread: any λ gives the target's mean
    if not bool(live.any()):
        return [1.0]
    unit = float(variances[live].mean()) * len(source)
    return [strength * unit for strength in STRENGTHS]
