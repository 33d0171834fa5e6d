"""transship: re-use what pretrained models have learned.

The public names are imported when they are first used, so that `import transship` costs nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship import activations, checkpoints, data, errors, geometry, parallel, report
    from transship.activations import compare, features
    from transship.checkpoints import Adapter, Checkpoint, Update, open, write_adapter, write_checkpoint
    from transship.errors import TransshipError
    from transship.geometry import Moments
    from transship.verbs.adapt import Recraft
    from transship.verbs.merge.api import merge
    from transship.verbs.merge.fusion import Fusion
    from transship.verbs.translate import (
        CCA,
        Affine,
        InverseRelativeProjection,
        KernelRidge,
        LazyIndex,
        Linear,
        Procrustes,
        RelativeRepresentation,
        Ridge,
        Stitch,
        load_map,
        scale_probe,
        stitching_matrix,
    )
    from transship.verbs.transport import transport
else:
    __getattr__, __dir__ = door(__name__)

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent until a program asks

__version__ = "0.1.0.dev0"

__all__ = [
    "CCA",
    "Adapter",
    "Affine",
    "Checkpoint",
    "Fusion",
    "InverseRelativeProjection",
    "KernelRidge",
    "LazyIndex",
    "Linear",
    "Moments",
    "Procrustes",
    "Recraft",
    "RelativeRepresentation",
    "Ridge",
    "Stitch",
    "TransshipError",
    "Update",
    "__version__",
    "activations",
    "checkpoints",
    "compare",
    "data",
    "errors",
    "features",
    "geometry",
    "load_map",
    "merge",
    "open",
    "parallel",
    "report",
    "scale_probe",
    "stitching_matrix",
    "transport",
    "write_adapter",
    "write_checkpoint",
]
