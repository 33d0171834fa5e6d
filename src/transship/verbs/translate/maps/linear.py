"""What the linear translators share: fitted from Moments, both directions, one product to apply."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from transship.geometry import LinearMap, Moments
from transship.types import Array
from transship.verbs.translate.maps.base import Translator, affine_rows

# a feature whose standard deviation is below this share of the root mean square one is rounding only
DEAD = 1e-3


class LinearTranslator(Translator):
    """y = x · coef_ + intercept_, fitted from Moments of the anchors; the way back is fitted by itself.

    A target feature that is constant over the anchors (all-MiniLM-L6-v2 has three) comes out as its mean: no
    map is fitted onto it. A constant source feature gets no weight.
    """

    def _fit(self, source: Tensor, target: Tensor) -> None:
        self.fit_moments(Moments.of(source, target, name=self.map_name))

    def fit_moments(self, moments: Moments) -> Self:
        """Fit from the Moments of paired rows, which may have been streamed or gathered on many machines."""
        moments.check()
        self._keep(self._fit_live(moments), self._fit_live(moments.swapped()), moments)
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:  # noqa: N803 - scikit-learn's name
        """Add paired rows to those seen before and fit anew; equals one fit on all rows (1e-8)."""
        first = not hasattr(self, "moments_")
        source, target = self._pairs(X, y, reset=first)
        if first:
            self.moments_ = Moments.zeros(source.shape[1], target.shape[1], name=self.map_name)
        self.moments_.update(source, target)
        if self.moments_.count >= 2:
            self.fit_moments(self.moments_)
        return self

    def _solve(self, moments: Moments) -> LinearMap:
        """Return the map of one direction."""
        raise TypeError(f"{type(self).__name__} defines no solution")

    def _fit_live(self, moments: Moments) -> LinearMap:
        """Solve on the features that vary; put the constant ones back as zero columns and rows."""
        live_a, live_b = (live_features(part) for part in (moments, moments.swapped()))
        if bool(live_a.all()) and bool(live_b.all()):
            return self._solve(moments)
        solved = self._solve(_restrict(moments, live_a, live_b))
        matrix = torch.zeros(moments.width_a, moments.width_b, dtype=torch.float64)
        rows, columns = torch.nonzero(live_a)[:, 0], torch.nonzero(live_b)[:, 0]
        matrix[rows[:, None], columns] = solved.matrix.double()
        means = moments.sum_a / moments.count, moments.sum_b / moments.count
        if solved.source_mean is None and solved.target_mean is None:
            # a map without means: a constant target feature still has to come out as its mean
            return LinearMap(
                matrix,
                None,
                torch.where(live_b, 0.0, means[1]),
                solved.kind,
                solved.rank,
                solved.tolerance,
                solved.details,
            )
        return LinearMap(matrix, *means, solved.kind, solved.rank, solved.tolerance, solved.details)

    def _keep(self, forward: LinearMap, backward: LinearMap, moments: Moments) -> None:
        """Set the fitted attributes from the maps of both directions."""
        self.coef_, self.intercept_ = _weights(forward)
        self.inverse_coef_, self.inverse_intercept_ = _weights(backward)
        self.rank_, self.tolerance_ = int(forward.rank), float(forward.tolerance)
        self.details_ = {name: float(value) for name, value in forward.details.items()}
        self.n_features_in_, self.n_features_out_ = moments.width_a, moments.width_b
        self.source_mean_ = (moments.sum_a / moments.count).numpy()
        self.target_mean_ = (moments.sum_b / moments.count).numpy()
        self.n_anchors_ = int(moments.count)
        self.anchors_hash_ = ""

    def _forward(self, rows: Tensor) -> Tensor:
        return affine_rows(rows, self.coef_, self.intercept_)

    def _backward(self, rows: Tensor) -> Tensor:
        return affine_rows(rows, self.inverse_coef_, self.inverse_intercept_)

    def as_affine(self) -> tuple[Array, Array]:
        """Return (W, b) with y = x W + b."""
        return self.coef_, self.intercept_

    def fold_output(self, matrix: Array, centre: Array) -> None:
        """Follow the map by y ↦ centre + (y − centre) · matrix (used to restore variance)."""
        self.coef_ = self.coef_ @ matrix
        self.intercept_ = centre + (self.intercept_ - centre) @ matrix


def _weights(fitted: LinearMap) -> tuple[Array, Array]:
    matrix = np.ascontiguousarray(fitted.matrix.double().numpy())
    bias = fitted.bias
    return matrix, np.zeros(matrix.shape[1]) if bias is None else bias.double().numpy()


def live_features(moments: Moments) -> Tensor:
    """Return which features of side a vary over the rows."""
    mean = moments.sum_a / moments.count
    variance = (moments.square_a / moments.count - mean.square()).clamp_min(0.0)
    # the difference of squares is known to the rounding of the squares only
    rounding = 8.0 * moments.precision * moments.square_a / moments.count
    live = variance > torch.maximum(rounding, DEAD**2 * variance.mean())
    return live if bool(live.any()) else torch.ones_like(live)


def _restrict(moments: Moments, live_a: Tensor, live_b: Tensor) -> Moments:
    def square(part: Tensor | None, rows: Tensor, columns: Tensor) -> Tensor | None:
        return None if part is None else part[rows][:, columns]

    return Moments(
        moments.count,
        moments.sum_a[live_a],
        moments.sum_b[live_b],
        moments.square_a[live_a],
        moments.square_b[live_b],
        square(moments.aa, live_a, live_a),
        square(moments.bb, live_b, live_b),
        square(moments.ab, live_a, live_b),
        moments.exact,
        moments.marks,
        name=moments.name,
    )
