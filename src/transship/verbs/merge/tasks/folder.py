"""A task's model folder: weight files that all tasks share as hard links, and a file of its own head."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transship.checkpoints import TensorPlan, write_file
from transship.checkpoints.card import as_json
from transship.checkpoints.write import applied, write_checkpoint
from transship.verbs.merge.recipe.plan.models import StoredModel


def write_task(
    folder: Path,
    backbone: Mapping[str, tuple[Path, Sequence[str]]],
    head: tuple[str, Sequence[TensorPlan]],
    *,
    config: Mapping[str, Any],
    total_size: int,
) -> None:
    """Write weights, their index and the config into an existing folder.

    Args:
        folder: the task's.
        backbone: file in the folder → the file that holds its bytes, and the tensors in it.
        head: file in the folder, and the tensors to write to it.
        config: the task's.
        total_size: what the index says of the bytes.
    """
    places: dict[str, str] = {}
    for name, (source, tensors) in backbone.items():
        if source != folder / name:
            link(source, folder / name)
        places |= dict.fromkeys(tensors, name)
    name, plans = head
    write_file(folder / name, plans)
    places |= {plan.name: name for plan in plans}
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(places.items()))}
    (folder / "model.safetensors.index.json").write_text(as_json(index), encoding="utf-8")
    (folder / "config.json").write_text(as_json(config), encoding="utf-8")


def link(source: str | Path, target: str | Path) -> None:
    """Make `target` the same file as `source`, or a copy where the file system has no hard links."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def whole_model(stored: StoredModel, owner: object) -> Path:
    """Write a base with its adapter to a temporary folder, which goes when `owner` does, and return it.

    Whether the two belong together is the caller's to ask.
    """
    if stored.update is None:
        raise ValueError(f"{stored.label} has no adapter")
    folder = Path(tempfile.mkdtemp(prefix="transship-adapter-"))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    plans = [*applied(stored.checkpoint, stored.update)]
    for name, producer in stored.update.added.items():
        info = stored.tensors[name]
        plans.append(TensorPlan(name, info.shape, info.dtype, producer))
    config = stored.config
    return write_checkpoint(folder / "model", plans, like=stored.checkpoint, config=config, sync=False)
