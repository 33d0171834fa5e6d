"""RegMean: linear maps by least squares on their own inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from transship.verbs.merge.maths.grams import held, input_grams, linear_maps, shrunk, solved, weighted
from transship.verbs.merge.maths.states import State, Vector, combined, numbers
from transship.verbs.merge.maths.tasks import check_inputs, summed
from transship.verbs.merge.protocol import Arrival, ContinualMethod, Joint, LearnedMethod, TaskView, parameter


@dataclass(frozen=True, kw_only=True)
class Regmean(LearnedMethod, ContinualMethod):
    """Give each linear map the least squared distance to what all models make of their own inputs.

    Jin et al., "Dataless Knowledge Fusion by Merging Weights of Language Models":
    W = (Σ c_i G_i)⁻¹ Σ c_i G_i W_i with G_i = XᵀX / tokens of what enters the map in model i. A 1 is appended
    to X, so that biases are solved for; maps that read the same tensor share G; all other tensors are
    averaged. With W_i = W_0 + τ_i that is W_0 + (Σ c_i G_i)⁻¹ Σ c_i G_i τ_i: updates are solved for, which
    keeps the digits that the large common part W_0 would take. One after another, the state is Σ G_i,
    Σ G_i τ_i and a sum of the rest: of constant size, the same for every order, and a model leaves by
    subtraction.

    Attributes:
        weight: c_i.
        keep: the factor of the off-diagonals of G_i (the paper's α; FusionBench has 0.95).
        ridge: share of the mean diagonal of G_i that is added to it.
        inputs: inputs that are read of each task.
        batch_size: inputs per forward pass.
    """

    paper: ClassVar[str] = "Jin et al., 2023"
    per_model: ClassVar[tuple[str, ...]] = ("weight",)
    held: ClassVar[tuple[float, float]] = (14.0, 0.0)
    needs_data: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    copies: ClassVar[float] = 2.0

    weight: float = parameter(1.0, only="recipe")
    keep: float = 0.9
    ridge: float = 1e-6
    inputs: int = parameter(256, only="fusion")
    batch_size: int = 16

    def learn(self, joint: Joint) -> Vector:
        """Return (Σ c_i G_i)⁻¹ Σ c_i G_i τ_i for linear maps, and the mean of the others."""
        return _solution(summed(joint, partial(self._sums, None)), joint.models[0].view())

    def first(self, arrival: Arrival) -> State:
        return self._with_update(self._arriving(arrival), arrival)

    def add(self, state: State, arrival: Arrival) -> State:
        return self._with_update(combined(state, self._arriving(arrival)), arrival)

    def remove(self, state: State, arrival: Arrival) -> State:
        """Return the sums without a model that had been added."""
        return self._with_update(combined(state, self._arriving(arrival), -1.0), arrival)

    def _arriving(self, arrival: Arrival) -> State:
        return self._sums(self.inputs, arrival.incoming, arrival.tuned, arrival.update)

    def _sums(
        self,
        inputs: int | None,
        task: TaskView,
        tuned: Mapping[str, Tensor],
        update: Mapping[str, Tensor],
        weight: float = 1.0,
    ) -> State:
        """Return the sums of one model: `grams`, `products`, and `rest` for what no linear map holds."""
        check_inputs(task, "regmean")
        maps = linear_maps(task)
        moments = input_grams(task, tuned, batch_size=self.batch_size, inputs=inputs)
        grams = {names: weight * shrunk(gram, self.keep, self.ridge) for names, gram in moments.items()}
        products = weighted(grams, maps, update)
        inside = held(grams, maps)
        return {
            "grams": {names: gram.float() for names, gram in grams.items()},
            "products": {name: product.float() for name, product in products.items()},
            "rest": {name: weight * change for name, change in update.items() if name not in inside},
            "numbers": numbers(weight=weight, count=1.0),
        }

    def _with_update(self, sums: State, arrival: Arrival) -> State:
        if float(sums["numbers"]["count"]) < 0.5:  # the last model left
            return sums | {"merged": {name: change * 0 for name, change in arrival.update.items()}}
        return sums | {"merged": _solution(sums, arrival.incoming)}


def _solution(sums: State, task: TaskView) -> Vector:
    """Return the merged update that sums stand for; any task of theirs says what the maps are."""
    count = float(sums["numbers"]["weight"])
    rest = {name: (total / count).float() for name, total in sums["rest"].items()}
    return rest | solved(sums["grams"], sums["products"], linear_maps(task))
