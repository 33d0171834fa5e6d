"""A base and an adapter that brings a head, as a model that runs: its class is known by its config alone."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


def whole_model(
    base: Path | None, adapter: Path | None, owner: object, *, allow_pickle: bool = False
) -> Path:
    """Write base + adapter to a temporary folder, which goes when `owner` does, and return it.

    Whether the two belong together is the caller's to ask.
    """
    from transship.verbs.merge.run import merge

    folder = Path(tempfile.mkdtemp(prefix="transship-adapter-"))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    model = {"model": {"path": str(base)}, "lora": {"path": str(adapter)}}
    recipe = {"merge_method": "passthrough", "models": [{"model": model}], "compatibility": "off"}
    return merge(recipe, allow_pickle=allow_pickle).save(folder / "model")
