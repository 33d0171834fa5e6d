"""Least squares with an intercept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transship.geometry import LinearMap, Moments, affine
from transship.verbs.translate.maps.base import LinearTranslator


@dataclass(kw_only=True, eq=False, repr=False)
class Affine(LinearTranslator):
    """Map by least squares with an intercept: y = x W + b, with the least norm where anchors leave W open.

    Attributes:
        tolerance: eigenvalues below this share of the largest count as zero; none is rounding.
    """

    paper: ClassVar[str] = "Maiorca et al., Latent Space Translation via Semantic Alignment"

    tolerance: float | None = None

    def _solve(self, moments: Moments) -> LinearMap:
        return affine(moments, tolerance=self.tolerance)
