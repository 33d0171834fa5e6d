"""Procrustes: exact for rotated spaces, between any two widths, in both precisions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_rows import pairs, rotation

from transship.verbs.translate import (
    Procrustes,
)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 100.0), width=st.integers(1, 9))
def test_a_space_rotated_scaled_and_shifted_is_recovered_by_procrustes(seed: int, scale: float, width: int):
    rng = np.random.default_rng(seed)
    x, shift = rng.normal(size=(40, width)), rng.normal(size=width)
    y = scale * x @ rotation(width, seed) + shift
    fitted = Procrustes().fit(x[:30], y[:30])
    np.testing.assert_allclose(fitted.transform(x[30:]), y[30:], atol=1e-9 * max(scale, 1))
    np.testing.assert_allclose(fitted.inverse_transform(y[30:]), x[30:], atol=1e-8)


def test_procrustes_agrees_with_scipy_when_square():
    x, y = pairs(source=6, target=6)
    expected, _ = scipy.linalg.orthogonal_procrustes(x, y)
    np.testing.assert_allclose(Procrustes(centre=False, scale=False).fit(x, y).coef_, expected, atol=1e-10)


@pytest.mark.parametrize(("source", "target"), [(4, 9), (9, 4)])
def test_procrustes_is_semi_orthogonal_between_any_two_widths(source: int, target: int):
    matrix = Procrustes(scale=False).fit(*pairs(source=source, target=target)).coef_
    narrow = matrix @ matrix.T if source < target else matrix.T @ matrix
    np.testing.assert_allclose(narrow, np.eye(4), atol=1e-10)


@pytest.mark.parametrize(("source", "target"), [(9, 9), (9, 6), (6, 9)])
@pytest.mark.parametrize("options", [{}, {"scale": False}, {"centre": False}])
def test_float32_rows_give_procrustes_the_map_of_float64_rows(source: int, target: int, options: dict):
    x, y = pairs(count=200, source=source, target=target)
    exact = Procrustes(**options).fit(x, y)
    single = Procrustes(**options).fit(x.astype(np.float32), y.astype(np.float32))
    for name in ("coef_", "intercept_", "inverse_coef_", "inverse_intercept_"):
        np.testing.assert_allclose(getattr(single, name), getattr(exact, name), atol=2e-5)
