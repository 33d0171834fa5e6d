"""Pure metrics: what verbs and suites report. NumPy or torch in, numbers or NumPy out."""

from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Shaped

from transship.errors import DataError

Array = npt.NDArray[Any]


def accuracy(predicted: Shaped[Any, " rows"], labels: Shaped[Any, " rows"]) -> float:
    """Return the share of equal labels."""
    left, right = _array(predicted), _array(labels)
    _same_length(left, right, "accuracy")
    return float((left == right).mean())


def twin_recall(found: Shaped[Any, "queries found"], twins: Shaped[Any, " queries"], k: int = 1) -> float:
    """Return how often a query's one twin is among its first k found rows."""
    left, right = _array(found), _array(twins)
    _same_length(left, right, "twin recall")
    return float((left[:, :k] == right[:, None]).any(1).mean())


def pearson(a: Shaped[Any, " rows"], b: Shaped[Any, " rows"]) -> float:
    """Return the correlation of two columns; 0 when one is constant."""
    left, right = _floats(a), _floats(b)
    _same_length(left, right, "correlation")
    left, right = left - left.mean(), right - right.mean()
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / scale if scale > 0 else 0.0


def spearman(a: Shaped[Any, " rows"], b: Shaped[Any, " rows"]) -> float:
    """Return the rank correlation of two columns (ties share their mean rank)."""
    from scipy.stats import rankdata

    return pearson(rankdata(_array(a)), rankdata(_array(b)))


def _array(values: Any) -> Array:
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def _floats(values: Any) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()  # bfloat16 has no NumPy type
    return np.asarray(values, dtype=np.float64)


def _same_length(a: Array, b: Array, where: str) -> None:
    if len(a) != len(b) or len(a) == 0:
        raise DataError(
            f"{len(a)} rows do not pair with {len(b)}", where=where, fix="give equal, non-empty sets"
        )
