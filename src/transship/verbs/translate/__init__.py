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
    "Columns": "stores",
    "FitSettings": "fit.trials",
    "Half": "maps.wire",
    "InverseRelativeProjection": "methods.irp",
    "JudgedFiles": "fit.api",
    "Judgements": "fit.judgements",
    "KernelRidge": "methods.kernel",
    "LazyIndex": "lazy.index",
    "Linear": "methods.linear",
    "LocalEngine": "engines",
    "Procrustes": "methods.procrustes",
    "RayEngine": "ray_engine",
    "RelativeRepresentation": "methods.relative",
    "Ridge": "methods.ridge",
    "SavedMap": "artifact",
    "Stitch": "stitch",
    "Stitching": "stitch",
    "Translator": "maps.base",
    "VectorPairs": "fit.pairs",
    "Wire": "maps.wire",
    "apply_map": "apply.moving",
    "check_map": "fit.api",
    "choose_anchors": "fit.anchors",
    "choose_engine": "engines",
    "choose_rows": "fit.anchors",
    "embed_texts": "apply.embed",
    "find_wrong_pairs": "fit.pairs",
    "fit_map": "fit.api",
    "fit_pairs": "fit.fitting",
    "fuse": "fit.judgements",
    "load_map": "artifact",
    "measure": "fit.quality",
    "ndcg": "fit.judgements",
    "neighbours": "nearest",
    "open_source": "stores",
    "out_of_sample": "fit.quality",
    "overlap": "nearest",
    "plan_apply": "apply.moving",
    "restore_variance": "fit.quality",
    "save_map": "artifact",
    "scale_probe": "stitch",
    "stitching_matrix": "stitch",
    "unit_rows": "nearest",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
