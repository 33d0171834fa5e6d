"""The rows to learn from and the rows to choose by: drawn once, by seed, never from a test set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transship.data.use import held_out
from transship.errors import DataError, OptionError
from transship.verbs.adapt.rows.targets import plain_labels
from transship.verbs.adapt.settings import Settings

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Split:
    """Raw rows in two parts.

    Attributes:
        inputs: to learn from.
        targets: of these.
        held_inputs: to choose by.
        held_targets: of these.
        held_index: which of the given rows are held out; empty when they came as a set of their own.
    """

    inputs: Array
    targets: Array
    held_inputs: Array
    held_targets: Array
    held_index: NDArray[np.int64]


def split_rows(X: Any, y: Any, settings: Settings) -> Split:  # noqa: N803 - scikit-learn's name
    """Return the parts; classes are cut at the share each, so that every class that can be is in both."""
    inputs, targets = plain(X, "X"), plain(y, "y")
    if len(inputs) != len(targets):
        raise DataError(
            f"there are {len(inputs)} inputs and {len(targets)} targets",
            where="y",
            fix="give one target per input",
        )
    if not len(inputs):
        raise DataError("there are no rows", where="X", fix="give at least four")
    given = settings.validation
    if isinstance(given, tuple | list):
        if len(given) != 2:
            raise OptionError(
                "it is neither a share nor a pair (X, y)", where="validation", fix="give one of them"
            )
        held, held_targets = plain(given[0], "validation X"), plain(given[1], "validation y")
        if len(held) != len(held_targets) or not len(held):
            raise DataError(
                "inputs and targets do not pair", where="validation", fix="give one target per input"
            )
        return Split(inputs, targets, held, held_targets, np.empty(0, np.int64))
    if not isinstance(given, int | float) or not 0 < given < 1:
        raise OptionError(
            f"the share {given!r} is not between 0 and 1",
            where="validation",
            fix="give 0.2, or a pair (X, y)",
        )
    if len(inputs) < 4:
        raise DataError(
            f"{len(inputs)} rows are too few to learn from and to choose by",
            where="X",
            fix="give four or more",
        )
    index = held_out(targets, float(given), settings.seed)
    kept = np.setdiff1d(np.arange(len(inputs)), index)
    return Split(inputs[kept], targets[kept], inputs[index], targets[index], index)


def plain(values: Any, where: str) -> Array:
    """Return values as an array; tensors and lists become one."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    try:
        array = plain_labels(values, where) if where.endswith("y") else np.asarray(values)
    except ValueError as error:
        raise DataError("rows are ragged", where=where, fix="give rows of one shape") from error
    if not array.ndim:
        raise DataError("it is one value and no rows", where=where, fix="give an array")
    return array


__all__ = ["Split", "plain", "split_rows"]
