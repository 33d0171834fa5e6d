"""`weights: auto`: factors of the models' weights, searched for on unlabelled inputs.

The merged model should answer each task's inputs as that task's own model does. Any method can be searched,
as the search only tries: first one factor for all models, then one model's factor after another, each up and
down by steps that grow smaller. Every trial is a merge in memory and one pass over the inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from transship import parallel
from transship.errors import NumericalError
from transship.numerics import chunks
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.descent import entropy
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.maths.tasks import check_classes, check_inputs
from transship.verbs.merge.protocol import TaskView
from transship.verbs.merge.recipe.plan.footprint import TRIAL_BATCH
from transship.verbs.merge.recipe.run.tensors import FoundWeights

Factors = tuple[float, ...]
STEP = 1.5  # the first factor up and down


class Searched(Protocol):
    """A model with its weights and its inputs."""

    @property
    def name(self) -> str: ...

    def weights(self) -> Vector:
        """Return θ."""

    def view(self) -> TaskView:
        """Return the model over its inputs, with its own head."""


@dataclass(eq=False)
class Search:
    """Looks for the factors of least loss.

    Attributes:
        models: in the recipe's order.
        trial: factors → the merged weights.
        objective: `outputs`, `entropy` or `agreement`.
        rounds: over all models.
        progress: is told how many of the expected trials are done.
    """

    models: Sequence[Searched]
    trial: Callable[[Factors], Vector]
    objective: str = "outputs"
    rounds: int = 3
    progress: Progress = quiet
    _known: dict[Factors, float] = field(default_factory=dict)

    def run(self) -> FoundWeights:
        seens = [model.view() for model in self.models]
        answers = []
        for model, seen in zip(self.models, seens, strict=True):
            weights = model.weights()
            check_inputs(seen, "weights: auto")
            if self.objective != "outputs":
                check_classes(seen, weights, "weights: auto")
            answers.append(answers_of(seen, weights))
        best = (1.0,) * len(self.models)
        start = self._loss(best, seens, answers)
        best = self._climb(best, range(len(best)), STEP, seens, answers)
        step = STEP
        for _ in range(self.rounds if len(best) > 1 else 0):
            for place in range(len(best)):
                best = self._climb(best, (place,), step, seens, answers)
            step = step**0.5
        return FoundWeights(best, self._known[best], start, len(self._known))

    def _climb(
        self,
        best: Factors,
        places: Sequence[int],
        step: float,
        seens: Sequence[TaskView],
        answers: "Sequence[Answers]",
    ) -> Factors:
        """Move the factors at `places` together, up or else down, as long as the loss falls."""
        for direction in (step, 1 / step):
            nearer = False
            while True:
                tried = tuple(
                    value * direction if place in places else value for place, value in enumerate(best)
                )
                if self._loss(tried, seens, answers) >= self._loss(best, seens, answers):
                    break
                best, nearer = tried, True
            if nearer:
                break
        return best

    def _loss(self, factors: Factors, seens: Sequence[TaskView], answers: "Sequence[Answers]") -> float:
        if factors not in self._known:
            backbone = self.trial(factors)
            losses = [
                answers_of(seen, backbone).distance(own, self.objective)
                for seen, own in zip(seens, answers, strict=True)
            ]
            total = parallel.agreed(sum(losses) / len(losses))
            if not total == total:
                raise NumericalError(
                    f"the merged model's answers at factors {factors} are NaN",
                    where="weights: auto",
                    fix="check the models",
                )
            self._known[factors] = total
            done, expected = len(self._known), 4 + 2 * self.rounds * len(factors)
            self.progress("searching weights", done, max(done + 1, expected))
        return self._known[factors]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model says of all inputs.

    Attributes:
        rows: [inputs, classes] logits, [inputs, 1] values, or [inputs, width] unit features.
        kind: which of them.
    """

    rows: Tensor
    kind: Literal["classes", "values", "features"]

    def distance(self, own: "Answers", objective: str) -> float:
        """Return how far these are from the answers of the task's own model.

        `outputs` is the Kullback-Leibler divergence of probabilities; of values the squared error as a share
        of their variance; of features the squared distance of unit rows.
        """
        if objective == "entropy":
            return float(entropy(self.rows))
        if objective == "agreement":
            return float((self.rows.argmax(1) != own.rows.argmax(1)).float().mean())
        if self.kind == "classes":
            mine, theirs = self.rows.log_softmax(1), own.rows.log_softmax(1)
            return float(functional.kl_div(mine, theirs, log_target=True, reduction="batchmean"))
        error = (self.rows - own.rows).square().sum(1).mean()
        return float(error / own.rows.var(0, correction=0).sum().clamp_min(1e-12))


def answers_of(seen: TaskView, backbone: Vector) -> Answers:
    """Return the logits or values of all inputs, or the unit features of a model without a head."""
    answers, bare = [], False
    with torch.no_grad():
        for number, part in enumerate(chunks(seen.count, TRIAL_BATCH)):
            if not parallel.mine(number):
                continue
            places = range(part.start, part.stop)
            reading = seen.read(backbone, seen.batch(places))
            bare = reading.outputs is None
            rows = reading.outputs
            if rows is None:
                rows = functional.normalize(reading.features, dim=1)
            answers.append((places, rows.float()))
    rows, bare = parallel.rows_of_all(seen.count, answers), any(parallel.gather(bare))
    return Answers(rows, "features" if bare else "classes" if rows.shape[1] > 1 else "values")
