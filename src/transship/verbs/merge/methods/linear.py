"""The weighted mean, or sum, of the models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from transship.errors import OptionError
from transship.verbs.merge.maths.operands import Floats, Operands
from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Linear(RecipeMethod):
    """Average the models with weights.

    Σ_i w_i x_i / Σ_i w_i, or the plain sum without `normalize`; Wortsman et al., "Model soups". One model is
    that model with any weight, bit by bit: w x / w would round twice.

    Attributes:
        weight: the factor of each model.
        normalize: divide by the sum of the weights.
    """

    paper: ClassVar[str] = "Wortsman et al., 2022"
    elementwise: ClassVar[bool] = True
    base: ClassVar[Literal["required", "optional", "input"]] = "input"
    required: ClassVar[tuple[str, ...]] = ("weight",)
    per_model: ClassVar[tuple[str, ...]] = ("weight",)
    parity: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    weight: float = 1.0
    normalize: bool = True

    def merge(self, operands: Operands) -> Iterator[Floats]:
        weights = operands.number("weight")
        divisor = sum(weights) if self.normalize else 1.0
        if divisor == 0:
            raise OptionError(
                "the weights sum to 0", where=operands.name, fix="choose others, or set normalize: false"
            )
        if self.normalize and len(weights) == 1:
            weights, divisor = [1.0], 1.0
        scales = [np.float32(weight) for weight in weights]
        product = np.empty(0, np.float32)
        for part in operands.parts():
            mixed = operands.model(0, part) * scales[0]
            if product.size != mixed.size:
                product = np.empty_like(mixed)
            for index in range(1, len(scales)):
                np.multiply(operands.model(index, part), scales[index], out=product)
                mixed += product
            if divisor != 1.0:
                mixed /= np.float32(divisor)
            yield mixed
