"""A saved task, read when it is needed: its model, test rows, and kept inputs as texts, numbers or images."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.data import load as load_data
from transship.errors import DataError, TransshipError
from transship.geometry.maps import read_arrays, write_arrays
from transship.verbs.merge.fusion.disk import CheckpointOrigin
from transship.verbs.merge.fusion.task import Kept, TaskFiles
from transship.verbs.merge.tasks.heads import LinearHead
from transship.verbs.merge.tasks.model import Rows, TaskModel
from transship.verbs.merge.tasks.rows import TestRows, task_rows

_KIND, _VERSION = "transship.fusion.inputs", 1


@dataclass(frozen=True, eq=False)
class FolderStore:
    """A task in a fusion's folder, read when it is needed.

    Attributes:
        origin: the fusion's base.
        folder: the fusion's.
        name: the task's.
        own: the task's own head.
        names: the backbone's tensors.
        find_test: finds its test rows.
    """

    origin: CheckpointOrigin
    folder: Path
    name: str
    own: LinearHead | None
    names: tuple[str, ...]
    find_test: Callable[[], TestRows | None]

    def model(self) -> TaskModel:
        """Return the model that runs."""
        if not self._place.is_dir():
            return self.origin.bare(self.name, self.own, self.names)
        return self.origin.restore(self.name, self._place, self.own, self.names)

    def kept(self) -> Kept | None:
        """Return what is kept of its inputs."""
        return read_kept(self.inputs)

    def test(self) -> TestRows | None:
        """Return its labelled test rows."""
        return self.find_test()

    def files(self) -> TaskFiles | None:
        """Return what its model's folder holds beside the backbone."""
        return self.origin.files(self._place, self.names) if self._place.is_dir() else None

    @property
    def inputs(self) -> Path:
        """The folder of its kept inputs, which may be missing."""
        return self.folder / "inputs" / self.name

    @property
    def _place(self) -> Path:
        return self.folder / "tasks" / self.name


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
