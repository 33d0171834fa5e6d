"""RegMean on additive sums: A = Σ c_i G_i and B = Σ c_i G_i τ_i, from which the merged update follows.

Nothing grows with the number of models, no order is special, and a model leaves by subtraction. With
W_i = W_0 + τ_i, (Σ G_i)⁻¹ Σ G_i W_i = W_0 + A⁻¹ B: updates are solved for, which keeps the digits that the
large common part W_0 would take.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from transship.verbs.merge.fusion.protocol import Seen, State, Vector, numbers
from transship.verbs.merge.learning.grams import held, input_grams, linear_maps, shrunk, solved, weighted
from transship.verbs.merge.learning.needs import check_inputs


@dataclass(frozen=True)
class RegMeanSums:
    """How a model's statistics are taken.

    Attributes:
        keep: the factor of the off-diagonals of each G_i.
        ridge: share of its mean diagonal that is added to each G_i.
        inputs: inputs that are read of each task; None reads all.
        batch_size: inputs per forward pass.
    """

    keep: float = 0.9
    ridge: float = 1e-6
    inputs: int | None = 256
    batch_size: int = 16

    def taken(
        self, seen: Seen, tuned: Mapping[str, Tensor], update: Mapping[str, Tensor], weight: float = 1.0
    ) -> State:
        """Return the sums of one model: `grams` A, `products` B, and `rest` for what no linear map holds."""
        check_inputs(seen, "regmean")
        maps = linear_maps(seen)
        found = input_grams(seen, tuned, batch_size=self.batch_size, inputs=self.inputs)
        grams = {names: weight * shrunk(gram, self.keep, self.ridge) for names, gram in found.items()}
        products = weighted(grams, maps, update)
        inside = held(grams, maps)
        return {
            "grams": {names: gram.float() for names, gram in grams.items()},
            "products": {name: product.float() for name, product in products.items()},
            "rest": {name: weight * change for name, change in update.items() if name not in inside},
            "numbers": numbers(weight=weight, count=1.0),
        }


def merged_update(sums: State, seen: Seen) -> Vector:
    """Return the merged update that sums stand for; any task of theirs says what the maps are."""
    count = float(sums["numbers"]["weight"])
    rest = {name: (total / count).float() for name, total in sums["rest"].items()}
    return rest | solved(sums["grams"], sums["products"], linear_maps(seen))
