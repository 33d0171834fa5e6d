"""Targets: series, waves, fields and the files of RECRAFT's paper, cut into training, validation and test.

Nothing is unpickled: NAS-Bench-360 publishes some sets as pickles, which have to be written as arrays first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from transship.data import data_folders, load
from transship.errors import DataError, MissingError
from transship.numerics import derive_seed
from transship.types import Array
from transship_suites.materials.fields import EQUATIONS
from transship_suites.materials.origins import FIELDS, PATCHES, read

TEST_SEED = 7  # the test rows are the same for every seed
# samples per token: eight tokens each, so that two cores train one in half a minute
_SHAPES: tuple[Callable[[Array], Array], ...] = (
    lambda turn: np.sin(2 * np.pi * turn),
    lambda turn: np.sign(np.sin(2 * np.pi * turn)),
    lambda turn: 2 * np.abs(2 * (turn % 1) - 1) - 1,
    lambda turn: 2 * (turn % 1) - 1,
)
_BANDS = ((3.0, 5.0), (6.0, 9.0))


@dataclass(frozen=True, eq=False)
class Target:
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


def series_task(name: str, *, rows: int | None, test: int | None, seed: int) -> Target:
    """Return a UCR set, the random-phase waves or a generated field.

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
    return drawn_task(name, _ucr(name, "train"), _ucr(name, "test"), rows=rows, test=test, seed=seed, **patch)


def drawn_task(
    name: str,
    whole: tuple[Array, Array],
    held: tuple[Array, Array],
    *,
    rows: int | None,
    test: int | None,
    seed: int,
    **settings: Any,
) -> Target:
    """Return a classification on some rows of a set, drawn by the seed; its test rows are always the same."""
    (inputs, labels), chosen = whole, np.random.default_rng(TEST_SEED).permutation(len(held[1]))
    if test is not None and test < len(held[1]):
        held = held[0][chosen[:test]], held[1][chosen[:test]]
    if rows is not None and rows < len(labels):
        chosen = drawn(labels, rows, seed=seed)
        inputs, labels = inputs[chosen], labels[chosen]
    return cut_task(name, (inputs, labels), held, seed, settings)


def field_task(name: str, *, rows: int, test: int, seed: int, points: int = 128) -> Target:
    """Return a generated equation as a dense task: the state at the start in, the state at the end out."""
    states, held = _fields(name, points, rows, seed), _fields(name, points, test, -TEST_SEED)
    cut = rows - max(1, rows // 5)
    settings = {"patch": PATCHES[name], "metric": "nrmse"} if states[0].ndim == 3 else {"metric": "nrmse"}
    train, validation = (states[0][:cut], states[1][:cut]), (states[0][cut:], states[1][cut:])
    return Target(name, "dense", train, validation, held, settings)


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
    series = np.stack(
        [_SHAPES[label % len(_SHAPES)](turn) for label, turn in zip(labels, turns, strict=True)]
    )
    series += noise * generator.normal(size=series.shape)
    return series[:, None].astype(np.float32), labels


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
) -> Target:
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
    return Target(name, "classification", parts[0], parts[1], test, settings)


@cache
def _ucr(name: str, split: str) -> tuple[Array, Array]:
    part = load(f"ucr_{name}").split(split)
    assert part.labels is not None
    values = np.asarray(part.inputs, dtype=np.float32)
    return values.reshape(len(values), -1, values.shape[-1]), part.labels


@cache
def _fields(name: str, points: int, rows: int, seed: int) -> tuple[Array, Array]:
    fields = EQUATIONS[name](points=points).generate(rows, seed=derive_seed(seed, "fields") % 2**32)
    return fields.inputs.astype(np.float32), fields.outputs.astype(np.float32)


VALIDATION = 0.1  # of the training rows; the paper's code takes the test rows


def pde_task(name: str, about: Mapping[str, Any], *, rows: int | None, test: int | None, seed: int) -> Target:
    """Return one of PDEBench's equations: the first frame in, a late frame out, nine tenths for training.

    Args:
        name: as tables show it.
        about: `file`, `form`, `frame`, `stride` and settings; see the suite.
        rows: training rows, drawn by the seed; None for all.
        test: test rows; None for all.
        seed: of the draw.
    """
    inputs, outputs = _frames(_find(f"pdebench/{about['file']}"), about)
    cut = len(inputs) - max(1, len(inputs) // 10)
    return _cut(
        name, "dense", (inputs[:cut], outputs[:cut]), (inputs[cut:], outputs[cut:]), about, rows, test, seed
    )


def array_task(
    name: str, about: Mapping[str, Any], *, rows: int | None, test: int | None, seed: int
) -> Target:
    """Return one of NAS-Bench-360's tasks from its arrays, or CIFAR-100 from the hub's parquet files."""
    if "hub" in about:
        train, held = (_pictures(about, split) for split in ("train", "test"))
    else:
        with np.load(_find(f"nasbench360/{name}.npz"), allow_pickle=False) as stored:
            lacking = {f"{side}_{split}" for side in "xy" for split in ("train", "test")} - set(stored)
            if lacking:
                raise DataError(
                    f"it has no array {sorted(lacking)[0]}",
                    where=f"nasbench360/{name}.npz",
                    fix="write x_train, y_train, x_test and y_test",
                )
            train, held = ((stored[f"x_{split}"], stored[f"y_{split}"]) for split in ("train", "test"))
    return _cut(name, about["kind"], train, held, about, rows, test, seed)


def _cut(
    name: str,
    kind: str,
    train: tuple[Array, Array],
    held: tuple[Array, Array],
    about: Mapping[str, Any],
    rows: int | None,
    test: int | None,
    seed: int,
) -> Target:
    order = np.random.default_rng(seed).permutation(len(train[0]))[:rows]
    cut = max(1, round(VALIDATION * len(order)))
    parts = [_typed(kind, train[0][some], train[1][some]) for some in (order[cut:], order[:cut])]
    measured = _typed(kind, held[0][:test], held[1][:test])
    return Target(name, kind, parts[0], parts[1], measured, about.get("settings", {}))


def _typed(kind: str, inputs: Array, targets: Array) -> tuple[Array, Array]:
    wanted = np.int64 if kind == "classification" else np.float32
    return np.asarray(inputs, np.float32), np.asarray(targets).astype(wanted)


def _find(name: str) -> Path:
    for folder in data_folders():
        if (folder / name).is_file():
            return folder / name
    raise MissingError("there is no such file in the data folders", where=name, fix="set TRANSSHIP_DATA")


def _frames(file: Path, about: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return first and late frames [rows, channels, …] of a PDEBench file, thinned by its stride."""
    import h5py  # an extra

    frame, stride, form = int(about["frame"]), int(about.get("stride", 1)), about["form"]
    with h5py.File(file, "r") as stored:
        if form == "tensor":  # [rows, times, points]
            first, last = (stored["tensor"][:, time, ::stride] for time in (0, frame))
        elif form == "fields":  # one table per field; they are laid one behind the other
            first, last = (
                np.concatenate([stored[key][:, time, ::stride] for key in about["fields"]], 1)
                for time in (0, frame)
            )
        elif form == "darcy":  # the coefficient, and the steady state
            first, last = stored["nu"][:, ::stride, ::stride], stored["tensor"][:, 0, ::stride, ::stride]
        else:  # one group per row: data [times, points…, fields]
            groups = [stored[key]["data"] for key in sorted(stored)]
            first, last = (
                np.stack([group[time, ..., int(about[side])] for group in groups])
                for time, side in ((0, "in"), (frame, "out"))
            )
    return np.asarray(first[:, None], np.float32), np.asarray(last, np.float32)


def _pictures(about: Mapping[str, Any], split: str) -> tuple[Array, Array]:
    data = read(
        about["hub"], "image", config=about["config"], column=about["column"], label=about["label"]
    ).split(split)
    pixels = np.stack([np.asarray(data.inputs[row], np.uint8) for row in range(len(data))])
    return pixels.transpose(0, 3, 1, 2) / np.float32(255), np.asarray(data.labels)
