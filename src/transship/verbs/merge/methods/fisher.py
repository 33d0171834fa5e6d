"""Fisher merging: average every weight by how much each model's predictions hang on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from transship.verbs.merge.methods._learned import LearnedMethod, Occasion

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Fisher(LearnedMethod):
    """Average every weight by how much each model's predictions hang on it.

    Matena and Raffel, "Merging Models with Fisher-Weighted Averaging", Eq. (1): θ = Σ c_i F_i θ_i / Σ c_i F_i
    with F_i = E_x Σ_y p(y|x) (∂ log p(y|x))² under model i, on unlabelled inputs of its task.

    Attributes:
        weight: c_i.
        definition: `exact` is the equation above, input by input and class by class; `drawn` takes one class
            at random for each input, with the same mean; `batch` squares the gradient summed over a batch, as
            FusionBench does.
        floor: is added to every entry of F_i.
        normalize: divide F_i by its norm over the whole model first.
        batch_size: inputs per batch of `batch`.
    """

    paper: ClassVar[str] = "Matena and Raffel, 2022"
    per_model: ClassVar[tuple[str, ...]] = ("weight",)
    copies: ClassVar[tuple[float, float]] = (8.0, 0.0)

    weight: float = 1.0
    definition: Literal["exact", "drawn", "batch"] = "exact"
    floor: float = 1e-6
    normalize: bool = True
    batch_size: int = 16

    @property
    def at_once(self) -> int:
        """One input, where derivatives are taken input by input."""
        return self.batch_size if self.definition == "batch" else 1

    def learn(self, occasion: Occasion) -> dict[str, Tensor]:
        """Return Σ c_i F_i τ_i / Σ c_i F_i."""
        from transship.verbs.merge.learning.fisher import FisherSums, merged_update
        from transship.verbs.merge.learning.joint import summed

        sums = FisherSums(self.definition, self.floor, self.normalize, None, self.batch_size, occasion.seed)
        return merged_update(summed(occasion, sums.taken))
