"""Least squares through the origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transship.geometry import LinearMap, Moments, linear
from transship.verbs.translate.maps.base import LinearTranslator


@dataclass(kw_only=True, eq=False, repr=False)
class Linear(LinearTranslator):
    """Map by least squares through the origin: y = x W with the least norm where anchors leave W open.

    Attributes:
        tolerance: eigenvalues of XᵀX below this share of the largest count as zero; none is rounding.
    """

    paper: ClassVar[str] = "Maiorca et al., Latent Space Translation via Semantic Alignment"

    tolerance: float | None = None

    def _solve(self, moments: Moments) -> LinearMap:
        return linear(moments, tolerance=self.tolerance)
