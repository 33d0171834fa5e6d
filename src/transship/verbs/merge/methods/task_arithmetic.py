"""Task arithmetic: weighted updates on top of the base."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.methods._protocol import Floats, Operands, RecipeMethod
from transship.verbs.merge.methods._sparsify import keep_all
from transship.verbs.merge.methods._updates import merge_updates


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(RecipeMethod):
    """Add the weighted updates of all models to the base.

    b + λ Σ_i w_i (x_i − b), after Ilharco et al., "Editing Models with Task Arithmetic".

    Attributes:
        weight: the factor of each model's update.
        density: accepted for recipes that set it; all entries are kept.
        normalize: divide by the weights of what was summed.
        scale: the factor of the joint update (`lambda` in recipes).
        rescale: accepted for recipes that set it; nothing is dropped, so nothing is made up for.
        int8_mask: accepted for recipes that set it; it changes nothing here.
    """

    paper: ClassVar[str] = "Ilharco et al., 2023"
    elementwise: ClassVar[bool] = True
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight", "density")
    spelling: ClassVar[dict[str, str]] = {"scale": "lambda"}
    parity: ClassVar[bool] = True

    weight: float = 1.0
    density: float = 1.0
    normalize: bool = False
    scale: float = 1.0
    rescale: bool = False
    int8_mask: bool = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor."""
        return merge_updates(
            operands,
            [keep_all] * len(operands.models),
            elect=False,
            normalize=self.normalize,
            scale=self.scale,
        )
