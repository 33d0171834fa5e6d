"""What every translator keeps: widths, constant features, kinds of arrays, streaming."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paired_rows import pairs
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from transship.geometry import Moments
from transship.registry import build_method, method_names
from transship.verbs.translate import (
    Ridge,
)

NAMES = [name for name in method_names("translate") if name != "relative"]


@pytest.mark.parametrize("name", ["procrustes", "linear", "affine", "cca"])
def test_streamed_fits_equal_one_fit_on_all_rows(name: str):
    x, y = pairs(count=90)
    whole = build_method("translate", name).fit(x, y)
    parts = [Moments.of(torch.from_numpy(x[i::10]), torch.from_numpy(y[i::10])) for i in range(10)]
    merged = build_method("translate", name).fit_moments(sum(parts[1:], parts[0]))
    stepwise = build_method("translate", name)
    for i in range(0, 90, 30):
        stepwise.partial_fit(x[i : i + 30], y[i : i + 30])
    for other in (merged, stepwise):
        np.testing.assert_allclose(other.transform(x), whole.transform(x), atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_both_directions_have_the_right_widths_and_fit(name: str):
    x, y = pairs(count=300, source=12, target=8, noise=0.01)
    for a, b in ((x, y), (y, x)):
        fitted = build_method("translate", name).fit(a, b)
        assert fitted.transform(a).shape == b.shape
        assert fitted.inverse_transform(b).shape == a.shape
        assert fitted.score(a, b) > 0.3


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_target_feature_comes_out_as_its_mean_and_moves_nothing_else(name: str):
    x, y = pairs(count=200, source=8, target=8)
    dead = np.insert(y, 3, 0.25, axis=1)
    plain, with_dead = (build_method("translate", name).fit(x, target) for target in (y, dead))
    translated = with_dead.transform(x)
    np.testing.assert_allclose(translated[:, 3], 0.25, atol=1e-9)
    np.testing.assert_allclose(np.delete(translated, 3, 1), plain.transform(x), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_source_feature_has_no_say(name: str):
    x, y = pairs(count=200, source=8, target=8)
    plain = build_method("translate", name).fit(x, y)
    with_dead = build_method("translate", name).fit(np.insert(x, 3, 0.0, axis=1), y)
    np.testing.assert_allclose(
        with_dead.transform(np.insert(x, 3, 0.0, axis=1)), plain.transform(x), atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*NAMES, "relative"])
def test_what_goes_in_comes_out_the_same_kind(name: str, dtype: torch.dtype):
    x, y = (torch.from_numpy(part).to(dtype) for part in pairs(count=50))
    fitted = build_method("translate", name).fit(x, y)
    translated = fitted.transform(x)
    assert isinstance(translated, torch.Tensor)
    assert translated.dtype == dtype
    if dtype != torch.bfloat16:
        array = fitted.transform(x.numpy())
        assert isinstance(array, np.ndarray)
        assert array.dtype == x.numpy().dtype
        np.testing.assert_allclose(array, translated.numpy(), rtol=1e-2 if dtype == torch.float16 else 1e-5)


def test_estimators_live_in_pipelines_and_clone():
    x, y = pairs()
    chained = make_pipeline(StandardScaler(), Ridge(alpha=2.0)).fit(x, y)
    assert chained.transform(x).shape == y.shape
    assert clone(chained[-1]).alpha == 2.0
