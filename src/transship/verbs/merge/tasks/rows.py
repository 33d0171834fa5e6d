"""The rows that a task brings: inputs to read, labels for tuned heads, test rows to measure on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transship.data import Dataset
from transship.data.use import match_labels, rows_to_fit, rows_to_measure
from transship.errors import DataError
from transship.numerics import derive_seed
from transship.verbs.merge.tasks.model import Rows


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
        if test is None:
            test = _measured(data)
        fitted = rows_to_fit(data, validation=True)
        labels = None if fitted.labels is None else _classes(fitted, label_names, where)
        data = fitted.inputs
    rows = None if data is None or not len(data) else data
    if isinstance(test, Dataset) and most_test is not None:
        test = test.take(most_test, seed)
    measured = _test(test, label_names, where)
    if rows is None:
        return TaskRows([], None, measured, about)
    if labels is not None and len(labels) != len(rows):
        raise DataError(
            f"there are {len(rows)} inputs and {len(labels)} labels", where=where, fix="give one per row"
        )
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


def _measured(data: Dataset) -> Dataset | None:
    return None if data.labels is None else rows_to_measure(data)


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
    if len(inputs) != len(labels):
        raise DataError(
            f"there are {len(inputs)} test inputs and {len(labels)} labels",
            where=where,
            fix="give one per row",
        )
    return TestRows(inputs, torch.as_tensor(np.asarray(labels)).long())


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
