"""RegMean++: RegMean with the inputs that the merged model itself will see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from transship.verbs.merge.methods._learned import LearnedMethod, Occasion

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RegmeanPlusPlus(LearnedMethod):
    """Solve for linear maps as RegMean does, one layer after another, on the inputs the merged layers give.

    Nguyen et al., "RegMean++: Enhancing Effectiveness and Generalization of Regression Mean for Model
    Merging": G_i is taken with all lower layers already merged. Every layer reads the inputs again, so that
    this exists for joint merging alone. Spelt `regmean++` in recipes.

    Attributes:
        weight: c_i.
        keep: the factor of the off-diagonals of G_i.
        ridge: share of the mean diagonal of G_i that is added to it.
        batch_size: inputs per forward pass.
    """

    paper: ClassVar[str] = "Nguyen et al., 2025"
    per_model: ClassVar[tuple[str, ...]] = ("weight",)
    copies: ClassVar[tuple[float, float]] = (8.0, 2.0)
    all_blocks: ClassVar[bool] = False

    weight: float = 1.0
    keep: float = 0.9
    ridge: float = 1e-6
    batch_size: int = 16

    def learn(self, occasion: Occasion) -> dict[str, Tensor]:
        """Return RegMean's update, layer by layer."""
        from transship.verbs.merge.learning.layers import layer_by_layer
        from transship.verbs.merge.learning.regmean import RegMeanSums

        return layer_by_layer(occasion, RegMeanSums(self.keep, self.ridge, None, self.batch_size))
