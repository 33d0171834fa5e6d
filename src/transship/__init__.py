"""transship: re-use what pretrained models have learned.

The public names are imported when they are first used (PEP 562), so that `import transship` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

# public name → the module that defines it; `data`, `report` and other rooms are modules themselves
_HOMES: dict[str, str] = {
    "Adapter": "transship.checkpoints",
    "Affine": "transship.verbs.translate",
    "CCA": "transship.verbs.translate",
    "Checkpoint": "transship.checkpoints",
    "Fusion": "transship.verbs.merge.fusion",
    "InverseRelativeProjection": "transship.verbs.translate",
    "KernelRidge": "transship.verbs.translate",
    "LazyIndex": "transship.verbs.translate",
    "Linear": "transship.verbs.translate",
    "Moments": "transship.geometry",
    "Procrustes": "transship.verbs.translate",
    "Recraft": "transship.verbs.adapt",
    "RelativeRepresentation": "transship.verbs.translate",
    "Ridge": "transship.verbs.translate",
    "Stitch": "transship.verbs.translate",
    "TransshipError": "transship.errors",
    "Update": "transship.checkpoints",
    "compare": "transship.activations",
    "load_map": "transship.verbs.translate",
    "merge": "transship.verbs.merge.api",
    "open": "transship.checkpoints",
    "scale_probe": "transship.verbs.translate",
    "stitching_matrix": "transship.verbs.translate",
    "transport": "transship.verbs.transport",
    "write_adapter": "transship.checkpoints",
    "write_checkpoint": "transship.checkpoints",
}
_ROOMS = ("activations", "checkpoints", "data", "errors", "geometry", "parallel", "report")

__all__ = ["__version__", *sorted(_HOMES), *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"transship.{name}")
    raise AttributeError(f"module 'transship' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
