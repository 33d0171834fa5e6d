"""Paired rows of two spaces, and what is compared with them, for the tests of the methods."""

from __future__ import annotations

import numpy as np


def pairs(count: int = 60, source: int = 7, target: int = 5, seed: int = 0, noise: float = 0.1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, source)) + 0.5
    y = np.tanh(x @ rng.normal(size=(source, target)) / 2) + noise * rng.normal(size=(count, target)) - 0.3
    return x, y


def rotation(width: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0]


def leave_out(x, y, fit):
    """Refit without each row in turn and predict it."""
    rows = range(len(x))
    return np.vstack([fit(np.delete(x, i, 0), np.delete(y, i, 0))(x[i : i + 1]) for i in rows])
