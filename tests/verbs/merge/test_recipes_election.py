"""Methods that draw and then elect, with several models: the draws of single models, put together densely."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transship.registry import build_method
from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]
SHAPE = (20, 30)
WEIGHTS = [0.7, -0.4, 0.2]


def gaussian(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def merged(name: str, given: Operands, **fields: Any) -> np.ndarray:
    parts = [np.array(part) for part in build_method("merge", name, fields).merge(given)]
    return np.concatenate(parts).reshape(given.shape)


def drawn(name: str, given: Operands, **fields: Any) -> np.ndarray:
    """What each model alone leaves of its update [models, …]: draws go by its name, not by its company."""
    alone = []
    for place, label in enumerate(given.labels):
        values = {key: [each[place]] for key, each in given.values.items()} | {"weight": [1.0]}
        text = dataclasses.replace(given, models=[given.models[place]], labels=[label], values=values)
        alone.append(merged(name, text, normalize=False, **fields))
    return np.stack(alone)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("name", "single", "elects"),
    [
        ("dare-linear", "dare-linear", False),
        ("dare-ties", "dare-linear", True),
        ("della-linear", "della-linear", False),
        ("della", "della-linear", True),
    ],
)
def test_what_is_kept_is_weighted_elected_summed_and_divided(
    operands: Make, name: str, single: str, elects: bool, normalize: bool, rescale: bool
):
    base = np.zeros(SHAPE, np.float32)
    models = [0.1 * gaussian(seed) for seed in (1, 2, 3)]
    values: dict[str, Any] = {"weight": WEIGHTS, "density": [0.6, 0.5, 0.4]}
    if name.startswith("della"):
        values["epsilon"] = 0.2
    given = operands(models, base, **values)
    kept = drawn(single, given, rescale=rescale)
    for place, (part, model) in enumerate(zip(kept, models, strict=True)):
        assert (part != 0).mean() == pytest.approx(values["density"][place], abs=0.08)
        scale = np.abs(model).sum() / np.abs(model[part != 0]).sum() if rescale else 1.0
        np.testing.assert_allclose(part[part != 0], scale * model[part != 0], rtol=1e-4)
    shares = np.array(WEIGHTS)[:, None, None]
    parts = shares * kept
    agree = np.sign(parts) == np.where(parts.sum(axis=0) >= 0, 1, -1) if elects else np.ones_like(kept)
    divisor = (shares * agree).sum(axis=0) if normalize else np.ones(SHAPE)
    expected = 0.9 * (parts * agree).sum(axis=0) / np.where(divisor == 0, 1, divisor)
    actual = merged(name, given, normalize=normalize, rescale=rescale, scale=0.9)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    if elects:  # TIES' property: nothing that was kept opposes the elected sign
        assert (actual * parts.sum(axis=0) * (1 if not normalize else np.sign(divisor)) >= 0).all()


def test_models_draw_apart_from_one_another(operands: Make):
    base, model = np.zeros(SHAPE, np.float32), np.ones(SHAPE, np.float32)
    kept = drawn("dare-linear", operands([model, model], base, weight=1.0, density=0.5), rescale=False)
    assert (kept[0] == kept[1]).mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("name", ["breadcrumbs", "breadcrumbs-ties", "ties"])
def test_rescaling_restores_the_norm_of_what_is_pruned_by_size(operands: Make, name: str):
    base, model = np.zeros(SHAPE, np.float32), gaussian(1)
    gamma = {} if name == "ties" else {"gamma": 0.1}
    given = operands([model], base, weight=1.0, density=0.4, **gamma)
    plain, scaled = merged(name, given), merged(name, given, rescale=True)
    assert 0.35 < (plain != 0).mean() < 0.45
    assert np.abs(scaled).sum() == pytest.approx(np.abs(model).sum(), rel=1e-4)
    np.testing.assert_allclose(scaled, plain * np.abs(model).sum() / np.abs(plain).sum(), rtol=1e-4)
