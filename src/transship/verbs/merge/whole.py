"""A base and an adapter that brings a head, as a model that runs: its class is known by its config alone."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from transship.checkpoints.write import TensorPlan, applied, write_checkpoint
from transship.verbs.merge.recipe.plan.models import StoredModel


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
