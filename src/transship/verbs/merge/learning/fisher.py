"""The diagonal of the Fisher information: how much a model's predictions hang on each of its weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from transship import parallel
from transship.errors import NumericalError
from transship.numerics import chunks, derive_seed
from transship.verbs.merge.fusion.protocol import Seen, State, Vector, norm, numbers
from transship.verbs.merge.learning.needs import check_classes

Definition = Literal["exact", "drawn", "batch"]


@dataclass(frozen=True)
class FisherSums:
    """How a model's Fisher information is taken.

    Attributes:
        definition: `exact`: E_x Σ_y p(y|x) (∂ log p(y|x))², input by input and class by class. `drawn`: one
            y ~ p(y|x) for each input, which has the same mean at the cost of one class. `batch`: the square
            of the gradient of Σ_x Σ_y √p log p summed over a batch, as FusionBench and MergeLM compute it:
            another quantity, which depends on the batch size.
        floor: is added to every entry, so that weights that no prediction hangs on are averaged.
        normalize: divide each model's information by its norm over the whole model, so that no task
            outweighs the others by how unsure its model is.
        inputs: inputs that are read of each task; None reads all.
        batch_size: inputs per batch of the definition `batch`.
        seed: of the draws.
    """

    definition: Definition = "exact"
    floor: float = 1e-6
    normalize: bool = True
    inputs: int | None = 256
    batch_size: int = 16
    seed: int = 0

    def taken(
        self, seen: Seen, tuned: Mapping[str, Tensor], update: Mapping[str, Tensor], weight: float = 1.0
    ) -> State:
        """Return the sums of one model: `information` c F and `products` c F τ."""
        check_classes(seen, dict(tuned), "fisher")
        found = self.information(seen, tuned)
        size = norm(found) if self.normalize else 1.0
        scale = 1.0 / size if size > 0 else 1.0
        information = {name: weight * (tensor * scale + self.floor) for name, tensor in found.items()}
        return {
            "information": information,
            "products": {name: tensor * update[name] for name, tensor in information.items()},
            "numbers": numbers(count=1.0),
        }

    def information(self, seen: Seen, tuned: Mapping[str, Tensor]) -> Vector:
        """Return F, without floor and not normalised."""
        weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in tuned.items()}
        total = {name: torch.zeros_like(tensor) for name, tensor in tuned.items()}
        for number, outputs in self._outputs(seen, weights):
            for loss, share in self._losses(outputs, number, seen.name):
                slopes = torch.autograd.grad(
                    loss, list(weights.values()), retain_graph=True, allow_unused=True
                )
                for name, slope in zip(weights, slopes, strict=True):
                    if slope is not None:
                        total[name].addcmul_(slope, slope, value=share)
        count = max(1, len(self._parts(seen)))
        found = {name: tensor / count for name, tensor in parallel.total(total).items()}
        for name, tensor in found.items():
            if not torch.isfinite(tensor).all():
                raise NumericalError(
                    f"the Fisher information of '{name}' holds a NaN or an infinity",
                    where=seen.name,
                    fix="check the model's weights",
                )
        return found

    def _parts(self, seen: Seen) -> list[slice]:
        """Return the rows of single inputs, or of batches where the definition is about batches."""
        size = self.batch_size if self.definition == "batch" else 1
        return list(chunks(min(seen.count, self.inputs or seen.count), size))

    def _outputs(self, seen: Seen, weights: Vector) -> Iterator[tuple[int, Tensor]]:
        """Yield the number, from 1, and the logits of this process's share of the parts."""
        for number, part in enumerate(self._parts(seen), 1):
            if not parallel.mine(number - 1):
                continue
            with torch.enable_grad():
                outputs = seen.read(weights, seen.batch(range(part.start, part.stop))).outputs
            assert outputs is not None
            yield number, outputs

    def _losses(self, outputs: Tensor, number: int, where: str) -> Iterator[tuple[Tensor, float]]:
        """Yield what is differentiated, and the weight of its squared gradient."""
        with torch.enable_grad():
            logs = outputs.log_softmax(-1)
            chances = logs.detach().exp()
            if self.definition == "batch":
                yield (chances.sqrt() * logs).sum(), 1.0
            elif self.definition == "drawn":
                generator = torch.Generator().manual_seed(derive_seed(self.seed, "fisher", where, number))
                chosen = int(torch.multinomial(chances[0].double().cpu(), 1, generator=generator))
                yield logs[0, chosen], 1.0
            else:
                for place in range(logs.shape[1]):
                    yield logs[0, place], float(chances[0, place])


def merged_update(sums: State) -> Vector:
    """Return τ = Σ c F τ / Σ c F, entry by entry."""
    return {name: sums["products"][name] / tensor for name, tensor in sums["information"].items()}
