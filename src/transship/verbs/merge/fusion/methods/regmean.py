"""RegMean on sums: the models that came can be in any order, and each can leave."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.fusion.protocol import ContinualMethod, State, Step
from transship.verbs.merge.learning.regmean import RegMeanSums, merged_update
from transship.verbs.merge.learning.sums import combined


@dataclass(frozen=True, kw_only=True)
class Regmean(ContinualMethod):
    """Give each linear map the least squared distance to what all models make of their own inputs.

    Jin et al., "Dataless Knowledge Fusion by Merging Weights of Language Models": W = (Σ G_i)⁻¹ Σ G_i W_i
    with G_i = XᵀX / tokens of what enters the map in model i. A 1 is appended to X, so that biases are solved
    for; maps that read the same tensor share G; all other tensors are averaged. The state is Σ G_i, Σ G_i τ_i
    and a sum of the rest: of constant size, the same for every order, and a model can be taken out again.

    Attributes:
        keep: the factor of the off-diagonals of G_i.
        ridge: share of the mean diagonal of G_i that is added to it.
        inputs: inputs that are read of each task.
        batch_size: inputs per forward pass.
    """

    paper: ClassVar[str] = "Jin et al., 2023"
    needs_data: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    copies: ClassVar[float] = 2.0

    keep: float = 0.9
    ridge: float = 1e-6
    inputs: int = 256
    batch_size: int = 16

    def first(self, step: Step) -> State:
        """Return the sums of the first model."""
        return self._with_update(self._taken(step), step)

    def add(self, state: State, step: Step) -> State:
        """Return the sums with one more model."""
        return self._with_update(combined(state, self._taken(step)), step)

    def remove(self, state: State, step: Step) -> State:
        """Return the sums without a model that had been added."""
        return self._with_update(combined(state, self._taken(step), -1.0), step)

    def _taken(self, step: Step) -> State:
        sums = RegMeanSums(self.keep, self.ridge, self.inputs, self.batch_size)
        return sums.taken(step.incoming, step.tuned, step.update)

    def _with_update(self, sums: State, step: Step) -> State:
        if float(sums["numbers"]["count"]) < 0.5:  # the last model left
            return sums | {"merged": {name: change * 0 for name, change in step.update.items()}}
        return sums | {"merged": merged_update(sums, step.incoming)}
