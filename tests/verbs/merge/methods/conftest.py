"""What the tests of methods share: plain arrays, references, and arrivals without data."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transship.registry import build_method
from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.protocol import Arrival, continual_method

SHAPE = (7, 12)


def _gaussian(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="session")
def gaussian() -> Callable[..., np.ndarray]:
    return _gaussian


@pytest.fixture(scope="session")
def merged() -> Callable[..., np.ndarray]:
    """What a method makes of one tensor."""

    def merge(name: str, given: Operands, **fields: Any) -> np.ndarray:
        method = build_method("merge", name, fields)
        return np.concatenate([np.array(part) for part in method.merge(given)]).reshape(given.shape)

    return merge


@pytest.fixture(scope="session")
def close() -> Callable[[np.ndarray, np.ndarray], None]:
    def check(found: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)

    return check


@pytest.fixture
def trio() -> tuple[np.ndarray, list[np.ndarray]]:
    """A base and three models near it."""
    base = _gaussian(*SHAPE, seed=0)
    return base, [base + 0.1 * _gaussian(*SHAPE, seed=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="session")
def top() -> Callable[[np.ndarray, int], np.ndarray]:
    """The mask of the `count` largest magnitudes, the lower index first."""

    def mask_of(update: np.ndarray, count: int) -> np.ndarray:
        order = np.argsort(-np.abs(update).ravel(), kind="stable")[:count]
        mask = np.zeros(update.size, bool)
        mask[order] = True
        return mask.reshape(update.shape)

    return mask_of


@pytest.fixture(scope="session")
def elected() -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Sum and weight of the entries of `parts` [models, …] that have the sign of the sum."""

    def elect(parts: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        agree = np.sign(parts) == np.where(parts.sum(axis=0) >= 0, 1, -1)
        shaped = weights.reshape(-1, *[1] * (parts.ndim - 1))
        return (parts * agree).sum(axis=0), (shaped * agree).sum(axis=0)

    return elect


@pytest.fixture(scope="session")
def over() -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda total, divisor: total / np.where(divisor == 0, 1, divisor)


@pytest.fixture(scope="session")
def arrivals() -> Any:
    """Updates of four tensors that arrive one after another at methods that need no data."""
    shapes = {"a.weight": (7, 5), "a.bias": (7,), "embed.weight": (9, 4), "b.weight": (4, 6)}
    linear = {"a.weight": "a", "b.weight": "b"}

    def update(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    base = update(99)

    def step(number: int, seed: int) -> Arrival:
        incoming: Any = SimpleNamespace(matrices=linear)
        return Arrival(number, base, update(seed), incoming)

    def run(name: str, seeds: list[int], **options: Any) -> tuple[dict[str, Tensor], Any]:
        method = continual_method(name, options)
        state = method.first(step(1, seeds[0]))
        for number, seed in enumerate(seeds[1:], 2):
            state = method.add(state, step(number, seed))
        return method.merged(state, base), (method, state)

    def flat(vector: dict[str, Tensor]) -> np.ndarray:
        return np.concatenate([vector[name].numpy().ravel() for name in shapes])

    return SimpleNamespace(
        shapes=shapes, linear=linear, base=base, update=update, step=step, run=run, flat=flat
    )
