"""Fisher merging on sums: the models that came can be in any order, and each can leave."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step, Vector
from transship.verbs.merge.learning.fisher import Definition, FisherSums, merged_update
from transship.verbs.merge.learning.sums import combined


@dataclass(frozen=True, kw_only=True)
class Fisher(ContinualMethod):
    """Average every weight by how much each model's predictions hang on it.

    Matena and Raffel, "Merging Models with Fisher-Weighted Averaging", Eq. (1): θ = Σ F_i θ_i / Σ F_i with
    F_i = E_x Σ_y p(y|x) (∂ log p(y|x))² under model i. The state is Σ F_i and Σ F_i τ_i: of constant size,
    the same for every order, and a model can be taken out again.

    Attributes:
        definition: `exact` is the equation above, input by input and class by class; `drawn` takes one class
            at random for each input, with the same mean; `batch` squares the gradient summed over a batch, as
            FusionBench does.
        floor: is added to every entry of F_i.
        normalize: divide F_i by its norm over the whole model first.
        inputs: inputs that are read of each task.
        batch_size: inputs per batch of `batch`.
    """

    paper: ClassVar[str] = "Matena and Raffel, 2022"
    needs_data: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    copies: ClassVar[float] = 4.0

    definition: Definition = "exact"
    floor: float = 1e-6
    normalize: bool = True
    inputs: int = 256
    batch_size: int = 16

    def first(self, step: Step) -> State:
        """Return the sums of the first model."""
        return self._taken(step)

    def add(self, state: State, step: Step) -> State:
        """Return the sums with one more model."""
        return combined(state, self._taken(step))

    def remove(self, state: State, step: Step) -> State:
        """Return the sums without a model that had been added."""
        return combined(state, self._taken(step), -1.0)

    def merged(self, state: State, base: Mapping[str, Tensor]) -> Vector:
        """Return Σ F_i τ_i / Σ F_i."""
        if float(state["numbers"]["count"]) < 0.5:
            return {name: tensor * 0 for name, tensor in state["products"].items()}
        return merged_update(state)

    def _taken(self, step: Step) -> State:
        sums = FisherSums(
            self.definition, self.floor, self.normalize, self.inputs, self.batch_size, step.seed
        )
        return sums.taken(step.incoming, step.tuned, step.update)
