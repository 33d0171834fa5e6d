"""A task: how its model runs on any backbone before its own head, and the rows that it brings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transship import parallel
from transship.activations import FunctionalModel, Reading
from transship.data import Dataset
from transship.data.use import match_labels, rows_to_fit, rows_to_measure
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


@dataclass(frozen=True, eq=False)
class TaskRows:
    """A task's rows, in an order drawn from the seed: a smaller share of them is always a beginning.

    Attributes:
        inputs: to be read without labels.
        labels: of the first rows of them, or None.
        test: rows to measure on.
        about: name, fingerprint and counts, for the record.
    """

    inputs: Rows
    labels: Int[Tensor, " labelled"] | None = None
    test: TestRows | None = None
    about: dict[str, Any] = field(default_factory=dict)


def task_rows(
    data: Any,
    labels: Any,
    test: Any,
    *,
    label_names: Sequence[str],
    label_share: float,
    most: int | None,
    seed: int,
    where: str,
    most_test: int | None = None,
) -> TaskRows:
    """Return what a user gave as the rows of a task.

    Args:
        data: a Dataset (its `train` rows, where it has splits), or plain inputs; None for none.
        labels: classes of plain inputs; a Dataset brings its own.
        test: (inputs, labels), or a Dataset; by default the `test` rows of `data`, else `validation`.
        label_names: what the head's outputs are called; classes of a Dataset are matched to them by name.
        label_share: the share of all labelled rows that tuned heads may see.
        most: at most so many inputs are read.
        seed: of the order.
        where: the task, for messages.
        most_test: at most so many test rows of a Dataset are measured on, drawn by the seed.
    """
    about: dict[str, Any] = {}
    if isinstance(data, Dataset):
        about = {"data": data.name, "data_fingerprint": data.fingerprint()}
        if test is None and data.labels is not None:
            test = rows_to_measure(data)
        fitted = rows_to_fit(data, validation=True)
        labels = None if fitted.labels is None else _classes(fitted, label_names, where)
        data = fitted.inputs
    if isinstance(test, Dataset) and most_test is not None:
        test = test.take(most_test, seed)
    measured = _test(test, label_names, where)
    if data is None or not len(data):
        return TaskRows([], None, measured, about)
    rows = data
    _check_lengths(rows, labels, "inputs", where)
    order = np.random.default_rng(derive_seed(seed, "rows")).permutation(len(rows))
    count = len(rows) if most is None else min(most, len(rows))
    inputs = take(rows, order[:count])
    classes = None
    if labels is not None:
        known = min(count, max(1, round(label_share * len(rows))))
        classes = torch.as_tensor(np.asarray(labels)[order[:known]]).long()
    return TaskRows(inputs, classes, measured, about | {"rows": count})


def take(rows: Rows, index: Sequence[int] | np.ndarray) -> Rows:
    """Return some of the rows, in the order of `index`."""
    if isinstance(rows, np.ndarray | Tensor):
        return rows[torch.as_tensor(index)] if isinstance(rows, Tensor) else rows[np.asarray(index)]
    return [rows[int(place)] for place in index]


def _test(test: Any, label_names: Sequence[str], where: str) -> TestRows | None:
    if test is None:
        return None
    if isinstance(test, TestRows):
        return test
    if isinstance(test, Dataset):
        if test.labels is None:
            raise DataError("it has no labels to measure with", where=test.name, fix="name the label column")
        return TestRows(test.inputs, torch.as_tensor(_classes(test, label_names, where)).long())
    inputs, labels = test
    _check_lengths(inputs, labels, "test inputs", where)
    return TestRows(inputs, torch.as_tensor(np.asarray(labels)).long())


def _check_lengths(inputs: Rows, labels: Any, what: str, where: str) -> None:
    if labels is not None and len(labels) != len(inputs):
        raise DataError(
            f"there are {len(inputs)} {what} and {len(labels)} labels", where=where, fix="give one per row"
        )


def _classes(data: Dataset, label_names: Sequence[str], where: str) -> np.ndarray:
    """Return the classes in the order of the head's outputs: matched by name where the names are the same."""
    if data.labels is None or not data.label_names:
        raise DataError("its labels are no classes", where=data.name, fix="name a class column")
    if not label_names:
        return np.asarray(data.labels)
    places = match_labels(data.label_names, label_names, f"the head of {where}", partly=True)
    if isinstance(places, str):
        raise DataError(places, where=data.name, fix=f"give the data that {where} was tuned for")
    return np.asarray(places[data.labels])
