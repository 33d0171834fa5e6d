"""Canonical correlation: both spaces into a shared one, and from there into the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sklearn.utils.validation import check_is_fitted

from transship.geometry import LinearMap, Moments, cca
from transship.verbs.translate.maps.base import LinearTranslator, affine_rows, like, to_tensor


@dataclass(kw_only=True, eq=False, repr=False)
class CCA(LinearTranslator):
    """Map through canonical correlations: directions that the two spaces share, weighted by how well.

    With (S_xx + ρ)^−½ S_xy (S_yy + ρ)^−½ = U Σ Vᵀ the map is (S_xx + ρ)^−½ U Σ Vᵀ (S_yy + ρ)^½ over the kept
    directions. `shared_source` and `shared_target` give both sides in the shared space, weighted by the
    correlations: where both sides can be rewritten, twins are variates there a little more often.

    Attributes:
        regularise: ρ as a share of each side's mean variance; small values need many anchors.
        size: how many directions are kept; none keeps all that the anchors show.
    """

    paper: ClassVar[str] = "Hotelling, Relations between two sets of variates"

    regularise: float = 0.3
    size: int | None = None

    def fit_moments(self, moments: Moments) -> CCA:
        """Fit from Moments; beside the map itself, keep both sides' way into the shared space."""
        super().fit_moments(moments)
        shared = cca(moments, regularise=self.regularise, size=self.size).weighted()
        self.correlations_ = shared.correlations.numpy()
        (
            (self.shared_coef_, self.shared_intercept_),
            (self.shared_target_coef_, self.shared_target_intercept_),
        ) = (
            (side.matrix.numpy(), -(side.source_mean @ side.matrix).numpy())
            for side in (shared.source, shared.target)
            if side.source_mean is not None
        )
        return self

    def _solve(self, moments: Moments) -> LinearMap:
        variates = cca(moments, regularise=self.regularise, size=self.size)
        # from canonical variates to the target: Vᵀ (S_yy + ρ)^½ / √n, the pseudo-inverse of its side
        back = torch.linalg.pinv(variates.target.matrix, rtol=1e-10)
        matrix = (variates.source.matrix * variates.correlations) @ back
        return LinearMap(
            matrix,
            moments.sum_a / moments.count,
            moments.sum_b / moments.count,
            "cca",
            variates.source.rank,
            variates.source.tolerance,
            {"regularise": self.regularise},
        )

    def shared_source(self, X: Any) -> Any:  # noqa: N803 - scikit-learn's name
        """Return source rows in the shared space, weighted by the correlations."""
        check_is_fitted(self)
        return like(affine_rows(to_tensor(X), self.shared_coef_, self.shared_intercept_), X)

    def shared_target(self, Y: Any) -> Any:  # noqa: N803
        """Return target rows in the shared space, weighted by the correlations."""
        check_is_fitted(self)
        return like(affine_rows(to_tensor(Y), self.shared_target_coef_, self.shared_target_intercept_), Y)
