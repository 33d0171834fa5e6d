"""Move embeddings from one model's space into another's.

The public names are imported when they are first used: the command line reads the stores without torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Affine": "methods.affine",
    "Agreement": "maps.wire",
    "CCA": "methods.cca",
    "Half": "maps.wire",
    "InverseRelativeProjection": "methods.irp",
    "KernelRidge": "methods.kernel",
    "LazyIndex": "lazy.index",
    "Linear": "methods.linear",
    "Procrustes": "methods.procrustes",
    "RelativeRepresentation": "methods.relative",
    "Ridge": "methods.ridge",
    "SavedMap": "artifact",
    "Stitch": "stitch",
    "Stitching": "stitch",
    "Translator": "maps.base",
    "Wire": "maps.wire",
    "apply_map": "apply.moving",
    "embed_texts": "apply.embed",
    "fit_pairs": "fit.fitting",
    "fuse": "fit.quality",
    "load_map": "artifact",
    "measure": "fit.quality",
    "restore_variance": "fit.quality",
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
