"""A saved task, read when it is needed: its model, test rows, and kept inputs as texts, numbers or images."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.data import load as load_data
from transship.errors import DataError, TransshipError
from transship.geometry.maps import read_arrays, write_arrays
from transship.verbs.merge.fusion.disk import CheckpointOrigin
from transship.verbs.merge.fusion.task import Kept, TaskFiles, TaskStore
from transship.verbs.merge.tasks.heads import LinearHead
from transship.verbs.merge.tasks.model import Rows, TaskModel, TestRows, task_rows

_KIND, _VERSION = "transship.fusion.inputs", 1


def stored_task(
    origin: CheckpointOrigin,
    folder: Path,
    name: str,
    own: LinearHead | None,
    names: tuple[str, ...],
    find_test: Callable[[], TestRows | None],
) -> TaskStore:
    """Return a task in a fusion's folder, read when it is needed; `names` are the backbone's tensors."""
    place, inputs = folder / "tasks" / name, folder / "inputs" / name

    def model() -> TaskModel:
        headed = place.is_dir()
        return origin.restore(name, place, own, names) if headed else origin.bare(name, own, names)

    def files() -> TaskFiles | None:
        return origin.files(place, names) if place.is_dir() else None

    return TaskStore(model, lambda: read_kept(inputs), find_test, files, inputs)


def test_rows(entry: Mapping[str, Any], seed: int) -> TestRows | None:
    """Return a saved task's test rows; None where they are not known, or have gone."""
    if (reopen := entry["about"].get("test")) is None:
        return None
    try:
        arguments = dict(reopen)
        split, most = arguments.pop("split", None), arguments.pop("rows", None)
        data = load_data(arguments.pop("reference"), **arguments)
        rows = task_rows(
            None if split is None else data,
            None,
            data if split is None else None,
            label_names=entry["label_names"],
            label_share=1.0,
            most=None,
            seed=seed,
            where=entry["name"],
            most_test=most,
        )
    except TransshipError:
        return None  # what was measured before stays
    return rows.test


def write_kept(folder: Path, kept: Kept) -> None:
    """Write kept inputs into an empty folder."""
    folder.mkdir(parents=True)
    parts = {"features": kept.features, "outputs": kept.outputs, "labels": kept.labels}
    arrays = {name: tensor for name, tensor in parts.items() if tensor is not None}
    first = kept.inputs[0]
    if isinstance(kept.inputs, np.ndarray | Tensor) or isinstance(first, np.ndarray | Tensor):
        arrays["inputs"] = _stacked(kept.inputs)
        form = "numpy" if isinstance(first, np.ndarray) or isinstance(kept.inputs, np.ndarray) else "torch"
    elif _is_text(first):
        form = "text"
        (folder / "inputs.json").write_text(json.dumps([*kept.inputs]), encoding="utf-8")
    elif hasattr(first, "save"):
        form = "image"
        for number, image in enumerate(kept.inputs):
            image.save(folder / f"{number:06d}.png")
    else:
        raise DataError(
            f"inputs of type {type(first).__name__} cannot be kept on disk",
            where=folder.name,
            fix="give texts, images or arrays, or keep none",
        )
    about = {"format": _KIND, "version": str(_VERSION), "form": form, "count": str(len(kept))}
    write_arrays(folder / "answers.safetensors", arrays, about)


def read_kept(folder: Path) -> Kept | None:
    """Return what `write_kept` wrote; None without a folder."""
    if not folder.is_dir():
        return None
    arrays, about = read_arrays(folder / "answers.safetensors", _KIND, _VERSION)
    inputs: Rows
    if about["form"] == "text":
        raw = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
        inputs = [tuple(row) if isinstance(row, list) else row for row in raw]
    elif about["form"] == "image":
        inputs = _Images(folder, int(about["count"]))
    else:
        inputs = arrays["inputs"].numpy() if about["form"] == "numpy" else arrays["inputs"]
    return Kept(inputs, arrays.get("features"), arrays.get("outputs"), arrays.get("labels"))


class _Images(Sequence[Any]):
    """Images of a folder, decoded when they are indexed."""

    def __init__(self, folder: Path, count: int) -> None:
        self._files = sorted(folder.glob("*.png"))[:count]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, place: Any) -> Any:
        from PIL import Image

        with Image.open(self._files[place]) as image:
            return image.copy()


def _stacked(inputs: Rows) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs
    try:
        return torch.from_numpy(np.stack([np.asarray(row) for row in inputs]))
    except ValueError as error:
        raise DataError(
            "its inputs have different shapes and cannot be kept", where="inputs", fix="make them alike"
        ) from error


def _is_text(row: Any) -> bool:
    return isinstance(row, str) or (
        isinstance(row, tuple | list) and bool(row) and all(isinstance(part, str) for part in row)
    )
