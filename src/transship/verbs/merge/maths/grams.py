"""RegMean's statistics: second moments of what enters each linear map, and the weights they lead to.

A Gram matrix belongs to all maps that read the same tensor (query, key and value of an attention), so it is
kept once, under their weights' names joined by `|`. Where one of the maps has a bias, a 1 is appended to the
input: the bias is then one more column of the weight, and is solved for with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transship import parallel
from transship.activations.models import Batch
from transship.activations.sites import Tap, watching
from transship.errors import NumericalError
from transship.numerics import chunks
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.protocol import TaskView

JOINT = "|"


@dataclass(frozen=True)
class LinearModule:
    """One linear map of the backbone.

    Attributes:
        weight: the backbone's name of W.
        bias: that of b, or None.
        path: the module's.
        transposed: W is stored as [in, out].
    """

    weight: str
    bias: str | None
    path: str
    transposed: bool

    def columns(self, vector: Mapping[str, Tensor]) -> Float[Tensor, "inputs outputs"]:
        """Return Wᵀ in float64, with b as its last row where there is one."""
        weight = vector[self.weight].double()
        columns = weight if self.transposed else weight.T
        return columns if self.bias is None else torch.cat([columns, vector[self.bias].double()[None]])

    def parts(self, columns: Float[Tensor, "inputs outputs"]) -> Vector:
        """Return W and b from what `columns` returned."""
        rows = columns if self.bias is None else columns[:-1]
        parts = {self.weight: (rows if self.transposed else rows.T).float().contiguous()}
        return parts if self.bias is None else parts | {self.bias: columns[-1].float().contiguous()}


def linear_maps(task: TaskView) -> dict[str, LinearModule]:
    """Return the linear maps of a task's backbone by the name of their weight.

    A weight that several modules share is none of them: it has no input of its own.
    """
    by_parameter = {parameter: name for name, parameter in task.names.items()}
    maps = {}
    for weight, path in task.matrices.items():
        module = task.module.get_submodule(path)
        transposed = type(module).__name__ == "Conv1D"  # GPT-2's, which is stored as [in, out]
        if weight not in task.names or not (isinstance(module, nn.Linear) or transposed):
            continue
        bias = by_parameter.get(f"{path}.bias" if path else "bias")
        maps[weight] = LinearModule(weight, bias, path, transposed)
    return maps


def input_grams(
    task: TaskView,
    backbone: Mapping[str, Tensor],
    *,
    batch_size: int = 16,
    only: Iterable[str] | None = None,
    inputs: int | None = None,
) -> dict[str, Float[Tensor, "inputs inputs"]]:
    """Return XᵀX / tokens of what enters each linear map, under the joined names of the maps that read it.

    Args:
        task: the task.
        backbone: the weights it runs with.
        batch_size: inputs per forward pass.
        only: weights of interest; all linear maps by default.
        inputs: read whole batches until there are so many inputs; all of them by default.

    Processes share the batches. Products are summed in float64 per batch; padding counts for nothing.
    """
    maps = linear_maps(task)
    if only is not None:
        maps = {name: maps[name] for name in only}
    counter = _Counter({linear.path: linear for linear in maps.values()})
    taps = [Tap(linear.path, "input") for linear in maps.values()]
    limit = task.count if inputs is None else min(task.count, -(-inputs // batch_size) * batch_size)
    with torch.no_grad(), watching(task.module, taps, counter.watch):
        for number, rows in enumerate(chunks(limit, batch_size)):
            if not parallel.mine(number):
                continue
            batch = task.batch(range(rows.start, rows.stop))
            counter.start(batch)
            task.read(backbone, batch)
            counter.finish()
    return counter.grams(task.name)


class _Counter:
    """Sums XᵀX per tensor, and finds out which maps read the same one."""

    def __init__(self, maps: Mapping[str, LinearModule]) -> None:
        self._maps = maps
        # under the names of the weights that read the tensor, joined
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}
        self._batch: Any = None
        self._caught: dict[int, tuple[Tensor, list[str]]] = {}

    def start(self, batch: Any) -> None:
        self._batch, self._caught = batch, {}

    def watch(self, tap: Tap, tensor: Tensor) -> None:
        """Note which map reads which tensor; a tensor that is kept cannot lend its number to another."""
        _, paths = self._caught.setdefault(id(tensor), (tensor, []))
        if tap.path not in paths:
            paths.append(tap.path)

    def finish(self) -> None:
        for tensor, paths in self._caught.values():
            key = JOINT.join(sorted(self._maps[path].weight for path in paths))
            rows = self._valid(tensor)
            if any(self._maps[path].bias is not None for path in paths):
                rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
            product = (rows.T @ rows).double()
            self._sums[key] = self._sums[key] + product if key in self._sums else product
            count = torch.tensor(float(len(rows)), dtype=torch.float64, device=product.device)
            self._rows[key] = self._rows[key] + count if key in self._rows else count
        self._caught = {}

    def _valid(self, tensor: Tensor) -> Float[Tensor, "rows width"]:
        """Return the rows of the tokens that are no padding."""
        if tensor.dim() == 3 and isinstance(self._batch, Batch):
            for layout in self._batch.layouts.values():
                if layout.mask is not None and layout.mask.shape == tensor.shape[:2]:
                    return tensor[torch.from_numpy(layout.mask).to(tensor.device)].float()
        return tensor.reshape(-1, tensor.shape[-1]).float()

    def grams(self, where: str) -> dict[str, Tensor]:
        """Return the means over the rows of all processes, finite or an error."""
        means, rows = {}, parallel.total(self._rows)
        for name, total in parallel.total(self._sums).items():
            if not torch.isfinite(total).all():
                raise NumericalError(
                    f"what enters '{name.split(JOINT)[0]}' holds a NaN or an infinity",
                    where=where,
                    fix="check the model's weights and inputs",
                )
            means[name] = total / rows[name]
        return means


def shrunk(
    gram: Float[Tensor, "inputs inputs"], keep: float = 0.9, ridge: float = 1e-6
) -> Float[Tensor, "inputs inputs"]:
    """Return the Gram matrix with off-diagonals times `keep` and `ridge` of its mean diagonal added.

    As the ridge belongs to G_i itself, it pulls an input that no task used towards the mean of the models,
    and one model alone stays exactly what it is.
    """
    diagonal = gram.diagonal()
    result = gram * keep
    result.diagonal().copy_(diagonal + ridge * float(diagonal.mean()))
    return result


def weighted(
    grams: Mapping[str, Tensor], maps: Mapping[str, LinearModule], update: Mapping[str, Tensor]
) -> Vector:
    """Return G Δᵀ for every linear map, in float64: [inputs, outputs], the bias as its last row."""
    products = {}
    for names, gram in grams.items():
        for name in names.split(JOINT):
            columns = maps[name].columns(update)
            size = len(columns)  # a map without a bias does not read the 1 at the end
            products[name] = gram[:size, :size].double() @ columns
    return products


def solved(
    grams: Mapping[str, Tensor], products: Mapping[str, Tensor], maps: Mapping[str, LinearModule]
) -> Vector:
    """Return Δ = (Σ G_i)⁻¹ Σ G_i Δ_i for every linear map, by Cholesky in float64."""
    changes: Vector = {}
    for names, gram in grams.items():
        factor, failed = torch.linalg.cholesky_ex(gram.double())
        if int(failed):
            raise NumericalError(
                f"the inputs of '{names.split(JOINT)[0]}' do not determine its weights",
                where="regmean",
                fix="choose a larger ridge, or more inputs",
            )
        for name in names.split(JOINT):
            size = len(products[name])  # the leading block of a factor is the factor of the leading block
            changes |= maps[name].parts(torch.cholesky_solve(products[name].double(), factor[:size, :size]))
    return changes


def held(grams: Mapping[str, Tensor], maps: Mapping[str, LinearModule]) -> set[str]:
    """Return the tensors that the linear maps of `grams` hold: weights and biases."""
    weights = {name for names in grams for name in names.split(JOINT)}
    return weights | {bias for name in weights if (bias := maps[name].bias) is not None}
