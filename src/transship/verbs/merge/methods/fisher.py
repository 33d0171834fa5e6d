"""Fisher merging: average every weight by how much each model's predictions hang on it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from transship import parallel
from transship.errors import NumericalError
from transship.numerics import chunks, derive_seed
from transship.verbs.merge.maths.states import State, Vector, combined, norm, numbers
from transship.verbs.merge.maths.tasks import check_classes, summed
from transship.verbs.merge.protocol import Arrival, ContinualMethod, Joint, LearnedMethod, TaskView, parameter


@dataclass(frozen=True, kw_only=True)
class Fisher(LearnedMethod, ContinualMethod):
    """Average every weight by how much each model's predictions hang on it.

    Matena and Raffel, "Merging Models with Fisher-Weighted Averaging", Eq. (1): θ = Σ c_i F_i θ_i / Σ c_i F_i
    with F_i = E_x Σ_y p(y|x) (∂ log p(y|x))² under model i, on unlabelled inputs of its task. One after
    another, the state is Σ F_i and Σ F_i τ_i: of constant size, the same for every order, and a model can be
    taken out again.

    Attributes:
        weight: c_i.
        definition: `exact` is the equation above, input by input and class by class; `drawn` takes one class
            at random for each input, with the same mean; `batch` squares the gradient summed over a batch, as
            FusionBench does: another quantity, which depends on the batch size.
        floor: is added to every entry of F_i, so that weights that no prediction hangs on are averaged.
        normalize: divide F_i by its norm over the whole model first, so that no task outweighs the others by
            how unsure its model is.
        inputs: inputs that are read of each task.
        batch_size: inputs per batch of `batch`.
    """

    paper: ClassVar[str] = "Matena and Raffel, 2022"
    per_model: ClassVar[tuple[str, ...]] = ("weight",)
    held: ClassVar[tuple[float, float]] = (8.0, 0.0)
    needs_data: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    copies: ClassVar[float] = 4.0

    weight: float = parameter(1.0, only="recipe")
    definition: Literal["exact", "drawn", "batch"] = "exact"
    floor: float = 1e-6
    normalize: bool = True
    inputs: int = parameter(256, only="fusion")
    batch_size: int = 16

    @property
    def at_once(self) -> int:
        """One input, where derivatives are taken input by input."""
        return self.batch_size if self.definition == "batch" else 1

    def learn(self, joint: Joint) -> Vector:
        """Return Σ c_i F_i τ_i / Σ c_i F_i."""
        return _mean(summed(joint, partial(self._sums, None, joint.seed)))

    def first(self, arrival: Arrival) -> State:
        return self._arriving(arrival)

    def add(self, state: State, arrival: Arrival) -> State:
        return combined(state, self._arriving(arrival))

    def remove(self, state: State, arrival: Arrival) -> State:
        """Return the sums without a model that had been added."""
        return combined(state, self._arriving(arrival), -1.0)

    def merged(self, state: State, base: Mapping[str, Tensor]) -> Vector:
        """Return Σ F_i τ_i / Σ F_i."""
        if float(state["numbers"]["count"]) < 0.5:
            return {name: tensor * 0 for name, tensor in state["products"].items()}
        return _mean(state)

    def _arriving(self, arrival: Arrival) -> State:
        return self._sums(self.inputs, arrival.seed, arrival.incoming, arrival.tuned, arrival.update)

    def _sums(
        self,
        inputs: int | None,
        seed: int,
        task: TaskView,
        tuned: Mapping[str, Tensor],
        update: Mapping[str, Tensor],
        weight: float = 1.0,
    ) -> State:
        """Return the sums of one model: `information` c F and `products` c F τ."""
        check_classes(task, dict(tuned), "fisher")
        plain = self.information(task, tuned, inputs=inputs, seed=seed)
        size = norm(plain) if self.normalize else 1.0
        scale = 1.0 / size if size > 0 else 1.0
        information = {name: weight * (tensor * scale + self.floor) for name, tensor in plain.items()}
        return {
            "information": information,
            "products": {name: tensor * update[name] for name, tensor in information.items()},
            "numbers": numbers(count=1.0),
        }

    def information(
        self, task: TaskView, tuned: Mapping[str, Tensor], *, inputs: int | None = None, seed: int = 0
    ) -> Vector:
        """Return F of a task's first inputs, or of all of them, without floor and not normalised."""
        weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in tuned.items()}
        total = {name: torch.zeros_like(tensor) for name, tensor in tuned.items()}
        size = self.batch_size if self.definition == "batch" else 1
        parts = list(chunks(min(task.count, inputs or task.count), size))
        for number, part in enumerate(parts, 1):
            if not parallel.mine(number - 1):
                continue
            with torch.enable_grad():
                outputs = task.read(weights, task.batch(range(part.start, part.stop))).outputs
            assert outputs is not None
            draw = derive_seed(seed, "fisher", task.name, number)
            for loss, share in self._losses(outputs, draw):
                slopes = torch.autograd.grad(
                    loss, list(weights.values()), retain_graph=True, allow_unused=True
                )
                for name, slope in zip(weights, slopes, strict=True):
                    if slope is not None:
                        total[name].addcmul_(slope, slope, value=share)
        mean = {name: tensor / max(1, len(parts)) for name, tensor in parallel.total(total).items()}
        for name, tensor in mean.items():
            if not torch.isfinite(tensor).all():
                raise NumericalError(
                    f"the Fisher information of '{name}' holds a NaN or an infinity",
                    where=task.name,
                    fix="check the model's weights",
                )
        return mean

    def _losses(self, outputs: Tensor, draw: int) -> Iterator[tuple[Tensor, float]]:
        """Yield what is differentiated, and the weight of its squared gradient."""
        with torch.enable_grad():
            logs = outputs.log_softmax(-1)
            chances = logs.detach().exp()
            if self.definition == "batch":
                yield (chances.sqrt() * logs).sum(), 1.0
            elif self.definition == "drawn":
                generator = torch.Generator().manual_seed(draw)
                chosen = int(torch.multinomial(chances[0].double().cpu(), 1, generator=generator))
                yield logs[0, chosen], 1.0
            else:
                for place in range(logs.shape[1]):
                    yield logs[0, place], float(chances[0, place])


def _mean(sums: State) -> Vector:
    """Return τ = Σ c F τ / Σ c F, entry by entry."""
    return {name: sums["products"][name] / tensor for name, tensor in sums["information"].items()}
