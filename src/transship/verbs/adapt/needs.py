"""What adapting takes in memory, from above, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transship.checkpoints.footprint import Footprint
from transship.data import find_model
from transship.verbs.adapt.fitting import batch_rows

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
