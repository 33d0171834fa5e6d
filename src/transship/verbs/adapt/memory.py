"""What adapting takes in memory, from above, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transship.checkpoints.footprint import Footprint
from transship.data import find_model
from transship.verbs.adapt.artifact import BASE, SOURCE, WEIGHTS, read_document
from transship.verbs.adapt.bound.terms import MOST_POINTS
from transship.verbs.adapt.fit import batch_rows
from transship.verbs.adapt.model.embedders import Shape
from transship.verbs.adapt.raw.linear import FEATURE_ROWS

# random convolutions give about 10,000 features of a row; the baselines hold them in float64, with copies
_BASELINE = 3 * 8 * 10_000


def fitting_bytes(inputs: np.ndarray[Any, Any], parameters: Mapping[str, Any]) -> int:
    """Return the bytes that a fit takes beside the interpreter.

    The rows as arrays and as tensors; the baselines' features; the weights as read, trained and kept at their
    best; gradients, Adam's moments and the activations of one batch.
    """
    model = Footprint.of(str(find_model(str(parameters["backbone"]))))
    batch = batch_rows(parameters.get("batch_size", "auto"), len(inputs))
    tokens = None if inputs.ndim == 4 else int(parameters.get("tokens", 32)) + 2
    rows = 4 * inputs.astype(np.float32, copy=False).nbytes + len(inputs) * _BASELINE
    return rows + 3 * model.weights + model.training(batch, tokens)


def predicting_bytes(folder: str | Path, inputs: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the bytes that predicting takes beside the interpreter, and those of each row that runs at once.

    The rows as arrays and as tensors; the files as bytes, as tensors and in the network; of the raw model
    under it the features of some rows.
    """
    place = Path(folder)
    files = sum((place / name).stat().st_size for name in (WEIGHTS, BASE) if (place / name).exists())
    features = FEATURE_ROWS * _BASELINE if (place / BASE).exists() else 0
    model = Footprint.of(str(place))
    return 4 * 4 * inputs.size + 3 * files + features, model.forward(1, _tokens(place))


def bounding_bytes(folder: str | Path, inputs: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the same for the bound: the pretrained body stands beside, and gradients flow back through it.

    Distances between a thousand rows and as many items are held in float64, a few times over.
    """
    place = Path(folder)
    fixed, _ = predicting_bytes(place, inputs)
    model = Footprint.of(str(place))
    source = (place / SOURCE).stat().st_size if (place / SOURCE).exists() else 0
    distances = 8 * 8 * MOST_POINTS**2
    each = model.layers * model.forward(1, _tokens(place))
    return fixed + 3 * source + 2 * model.weights + distances, each


def _tokens(place: Path) -> int:
    return Shape.from_dict(read_document(place)["embedder"]).tokens
