"""One model's tensors, as they are or scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Passthrough(RecipeMethod):
    """Copy the tensors of one model, for stacking layers; `scale` multiplies them.

    Two layers in a row may come from different models or be the same one twice ("frankenmerging").

    Attributes:
        scale: the factor of the tensor; none copies the bytes.
    """

    base: ClassVar[Literal["required", "optional", "input"]] = "input"
    most: ClassVar[int | None] = 1
    per_model: ClassVar[tuple[str, ...]] = ("scale",)
    parity: ClassVar[bool] = True

    scale: float | None = None

    def merge(self, operands: Operands) -> Iterator[Floats]:
        scale = operands.values["scale"][0]
        for part in operands.parts():
            values = operands.model(0, part)
            yield values if scale is None else values * np.float32(scale)
