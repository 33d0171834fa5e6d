"""Least squares with an intercept, against scikit-learn."""

from __future__ import annotations

import numpy as np
from paired_rows import pairs
from sklearn.linear_model import LinearRegression

from transship.verbs.translate import Affine


def test_affine_agrees_with_scikit_learn():
    x, y = pairs()
    expected = LinearRegression().fit(x, y).predict(x)
    np.testing.assert_allclose(Affine().fit(x, y).transform(x), expected, atol=1e-9)
