"""A task in a fusion: its model's head, what is kept of its inputs, and how it runs on any backbone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transship import parallel
from transship.activations import FunctionalModel, Reading
from transship.errors import DataError
from transship.numerics import chunks, derive_seed
from transship.verbs.merge.fusion.heads import HeadKind, LinearHead

Rows = Sequence[Any] | np.ndarray | Tensor


class TaskModel:
    """A task's model, run with any backbone before its own head; sees the inputs it is given (`Seen`).

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

    def batches(self, size: int) -> Iterator[Any]:
        """Yield all inputs, in order."""
        for part in chunks(self.count, size):
            yield self.batch(range(part.start, part.stop))

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
        made = self.model({self.names[name]: tensor for name, tensor in backbone.items()}, batch)
        return made if self.head is None else Reading(made.features, self.head(made.features))

    def features(self, backbone: Mapping[str, Tensor], size: int = 64) -> Float[Tensor, "inputs width"]:
        """Return the features of all inputs, float32, on the CPU; processes share the batches."""
        if not self.count:
            raise DataError("there are no inputs", where=self.name, fix="give data")
        # texts of like length together: a batch is padded to its longest
        order: Sequence[int] = range(self.count)
        if isinstance(self.inputs[0], str):
            measure = self.model.loaded.length
            order = sorted(order, key=lambda row: -measure(self.inputs[row]))
        found = []
        with torch.no_grad():
            for number, part in enumerate(chunks(self.count, size)):
                if parallel.mine(number):
                    rows = list(order[part])
                    found.append((rows, self.read(backbone, self.batch(rows)).features.float().cpu()))
        return parallel.rows_of_all(self.count, found)


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of a task's inputs, with what its own model said of them.

    Attributes:
        inputs: raw and unlabelled, unless heads are tuned on labels.
        features: [inputs, width] of the task's own model; None where nothing is measured or carried.
        outputs: [inputs, classes]; None likewise, or without a head.
        labels: of the first rows, where tuned heads need them.
    """

    inputs: Rows
    features: Float[Tensor, "inputs width"] | None = None
    outputs: Float[Tensor, "inputs classes"] | None = None
    labels: Int[Tensor, " labelled"] | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class TestRows:
    """Labelled rows that nothing is fitted on.

    Attributes:
        inputs: raw.
        labels: classes, in the order of the head's outputs.
    """

    inputs: Rows
    labels: Int[Tensor, " inputs"]

    __test__ = False  # no class of tests


@dataclass(eq=False)
class Task:
    """One task of a fusion.

    Attributes:
        name: unique in the fusion.
        fingerprint: of the fine-tune that brought it.
        source: the fine-tune as the user gave it.
        opener: makes the model that runs; dropped after use, so that memory does not grow with the tasks.
        keeper: reads what is kept of its inputs; None where nothing is.
        tester: finds its labelled test rows; None where there are none, or no longer.
        files: what its model's folder holds beside the backbone; None in memory and without a head.
        heads: by kind.
        norm: ‖τ_i‖.
        individual: accuracy of its own model.
        classes: outputs of its head; 0 without one.
        label_names: of the classes.
        about: what else is known: data, rows, how test rows are found again.
        inputs_in: the folder of a saved fusion that holds its kept inputs.
    """

    name: str
    fingerprint: str
    source: str
    opener: Callable[[], TaskModel]
    keeper: Callable[[], Kept | None]
    tester: Callable[[], TestRows | None]
    files: Callable[[], Any] | None = None
    heads: dict[HeadKind, LinearHead] = field(default_factory=dict)
    norm: float = 0.0
    individual: float | None = None
    label_names: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    inputs_in: Path | None = None

    @property
    def classes(self) -> int:
        """Outputs of its head; 0 without one."""
        return self.heads["own"].weight.shape[0] if "own" in self.heads else 0
