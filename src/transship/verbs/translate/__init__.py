"""Move embeddings from one model's space into another's.

The public names are imported when they are first used: the command line reads the stores without torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Affine": "methods.affine",
    "Agreement": "wire",
    "CCA": "methods.cca",
    "Half": "wire",
    "InverseRelativeProjection": "methods.irp",
    "KernelRidge": "methods.kernel",
    "LazyIndex": "lazy",
    "Linear": "methods.linear",
    "Procrustes": "methods.procrustes",
    "RelativeRepresentation": "methods.relative",
    "Ridge": "methods.ridge",
    "SavedMap": "artifact",
    "Stitch": "stitch",
    "Stitching": "stitch",
    "Translator": "base",
    "Wire": "wire",
    "apply_map": "moving",
    "embed_texts": "embed",
    "fit_pairs": "fitting",
    "fuse": "quality",
    "load_map": "artifact",
    "measure": "quality",
    "restore_variance": "quality",
    "save_map": "artifact",
    "scale_probe": "stitch",
    "stitching_matrix": "stitch",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
