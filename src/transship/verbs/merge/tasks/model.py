"""A task's model: how it runs on any backbone before its own head."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from transship import parallel
from transship.activations import FunctionalModel, Reading
from transship.errors import DataError
from transship.numerics import chunks, derive_seed
from transship.verbs.merge.tasks.heads import LinearHead

Rows = Sequence[Any] | np.ndarray | Tensor


class TaskModel:
    """A task's model, run with any backbone before its own head; sees the inputs it is given (`TaskView`).

    Attributes:
        name: the task's.
        model: the functional model; shared by all tasks that are in memory.
        names: backbone tensor → parameter of the model.
        head: the model's own last Linear; None where it has none with one row of outputs per input.
        inputs: raw inputs.
    """

    def __init__(
        self,
        name: str,
        model: FunctionalModel,
        names: Mapping[str, str],
        head: LinearHead | None,
        inputs: Rows | None = None,
    ) -> None:
        self.name, self.model, self.names, self.head = name, model, names, head
        self.inputs: Rows = [] if inputs is None else inputs

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return len(self.inputs)

    @property
    def module(self) -> nn.Module:
        """The module that runs, for hooks."""
        return self.model.module

    @cached_property
    def matrices(self) -> dict[str, str]:
        """Backbone weight of a linear map → path of its module."""
        paths = self.model.matrices
        return {name: paths[other] for name, other in self.names.items() if other in paths}

    def over(self, inputs: Rows | None) -> "TaskModel":
        """Return the same task over other inputs."""
        return TaskModel(self.name, self.model, self.names, self.head, inputs)

    def batch(self, rows: Iterable[int]) -> Any:
        """Return some of the inputs as the model reads them."""
        chosen = list(rows)
        if isinstance(self.inputs, Tensor):
            return self.inputs[chosen]
        if isinstance(self.inputs, np.ndarray) and self.model.features is not None:
            return torch.from_numpy(self.inputs[chosen])
        return self.model.loaded.preprocess([self.inputs[row] for row in chosen])

    def draws(self, size: int, seed: int) -> Iterator[list[int]]:
        """Yield rows without end, each pass over the inputs in a new order."""
        if not self.count:
            raise DataError("there are no inputs", where=self.name, fix="give data")
        random = np.random.default_rng(derive_seed(seed, "draws"))
        waiting: list[int] = []
        while True:
            while len(waiting) < min(size, self.count):
                waiting += [int(row) for row in random.permutation(self.count)]
            yield waiting[:size]
            waiting = waiting[size:]

    def read(self, backbone: Mapping[str, Tensor], batch: Any) -> Reading:
        """Return features and the own head's outputs under `backbone`; differentiable in it."""
        reading = self.model({self.names[name]: tensor for name, tensor in backbone.items()}, batch)
        return reading if self.head is None else Reading(reading.features, self.head(reading.features))

    def features(self, backbone: Mapping[str, Tensor], size: int = 64) -> Float[Tensor, "inputs width"]:
        """Return the features of all inputs, float32, on the CPU; processes share the batches."""
        if not self.count:
            raise DataError("there are no inputs", where=self.name, fix="give data")
        # texts of like length together: a batch is padded to its longest
        order: Sequence[int] = range(self.count)
        if isinstance(self.inputs[0], str):
            measure = self.model.loaded.length
            order = sorted(order, key=lambda row: -measure(self.inputs[row]))
        features = []
        with torch.no_grad():
            for number, part in enumerate(chunks(self.count, size)):
                if parallel.mine(number):
                    rows = list(order[part])
                    features.append((rows, self.read(backbone, self.batch(rows)).features.float().cpu()))
        return parallel.rows_of_all(self.count, features)
