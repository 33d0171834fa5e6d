"""The targets of RECRAFT's paper as their own files hold them: PDEBench's HDF5, arrays of NAS-Bench-360.

Nothing is unpickled: NAS-Bench-360 publishes some sets as pickles, which have to be written as arrays first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transship.data import data_folders
from transship.errors import DataError, MissingError
from transship_suites.materials.hub import read
from transship_suites.materials.series import Array, Task

VALIDATION = 0.1  # of the training rows; the paper's code takes the test rows


def pde_task(name: str, about: Mapping[str, Any], *, rows: int | None, test: int | None, seed: int) -> Task:
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


def array_task(name: str, about: Mapping[str, Any], *, rows: int | None, test: int | None, seed: int) -> Task:
    """Return one of NAS-Bench-360's tasks from its arrays, or CIFAR-100 from the hub's parquet files."""
    if "hub" in about:
        train, held = (_pictures(about, split) for split in ("train", "test"))
    else:
        with np.load(_find(f"nasbench360/{name}.npz"), allow_pickle=False) as stored:
            lacking = {f"{one}_{split}" for one in "xy" for split in ("train", "test")} - set(stored)
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
) -> Task:
    order = np.random.default_rng(seed).permutation(len(train[0]))[:rows]
    cut = max(1, round(VALIDATION * len(order)))
    parts = [_typed(kind, train[0][some], train[1][some]) for some in (order[cut:], order[:cut])]
    measured = _typed(kind, held[0][:test], held[1][:test])
    return Task(name, kind, parts[0], parts[1], measured, about.get("settings", {}))


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
    import h5py

    frame, stride, form = int(about["frame"]), int(about.get("stride", 1)), about["form"]
    with h5py.File(file, "r") as stored:
        if form == "tensor":  # [rows, times, points]
            table = stored["tensor"]
            found = table[:, 0, ::stride][:, None], table[:, frame, ::stride]
        elif form == "fields":  # one table per field; they are laid one behind the other
            parts = [
                (stored[key][:, 0, ::stride], stored[key][:, frame, ::stride]) for key in about["fields"]
            ]
            first, last = (np.concatenate(part, 1) for part in zip(*parts, strict=True))
            found = first[:, None], last
        elif form == "darcy":  # the coefficient, and the steady state
            found = (
                stored["nu"][:, ::stride, ::stride][:, None],
                stored["tensor"][:, 0, ::stride, ::stride],
            )
        else:  # one group per row: data [times, points…, fields]
            one, other = int(about["in"]), int(about["out"])
            groups = [stored[key]["data"] for key in sorted(stored)]
            found = (
                np.stack([group[0, ..., one] for group in groups])[:, None],
                np.stack([group[frame, ..., other] for group in groups]),
            )
    return np.asarray(found[0], np.float32), np.asarray(found[1], np.float32)


def _pictures(about: Mapping[str, Any], split: str) -> tuple[Array, Array]:
    data = read(
        about["hub"], "image", config=about["config"], column=about["column"], label=about["label"]
    ).split(split)
    pixels = np.stack([np.asarray(data.inputs[row], np.uint8) for row in range(len(data))])
    return pixels.transpose(0, 3, 1, 2) / np.float32(255), np.asarray(data.labels)
