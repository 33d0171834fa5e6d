"""Ridge: its leave-one-out, and the penalty that it takes."""

from __future__ import annotations

import numpy as np
import torch
from paired_rows import leave_out, pairs
from sklearn.linear_model import Ridge as SklearnRidge

from transship.geometry import Moments
from transship.verbs.translate import (
    Ridge,
)


def test_ridge_agrees_with_scikit_learn():
    x, y = pairs()
    expected = SklearnRidge(alpha=3.0).fit(x, y).predict(x)
    np.testing.assert_allclose(Ridge(alpha=3.0).fit(x, y).transform(x), expected, atol=1e-9)


def test_leave_one_out_of_ridge_equals_refitting():
    x, y = pairs(count=25)
    fitted = Ridge(alpha=0.7).fit(x, y)
    expected = leave_out(x, y, lambda a, b: SklearnRidge(alpha=0.7).fit(a, b).predict)
    np.testing.assert_allclose(fitted.leave_one_out(x, y), expected, atol=1e-9)


def test_ridge_takes_the_penalty_of_least_leave_one_out_error():
    x, y = pairs(count=25, noise=1.0)
    fitted = Ridge().fit(x, y)
    unit = np.square(x - x.mean(0)).sum() / x.shape[1]
    errors = {
        alpha: np.square(
            leave_out(x, y, lambda a, b, c=alpha: SklearnRidge(alpha=c).fit(a, b).predict) - y
        ).mean()
        for alpha in unit * 10.0 ** np.arange(-4, 2, 0.5)
    }
    np.testing.assert_allclose(fitted.alpha_, min(errors, key=errors.get))


def test_ridge_from_moments_takes_the_penalty_of_least_gcv():
    x, y = pairs(count=50, noise=0.8)
    fitted = Ridge(alpha="gcv").fit(x, y)
    centred_x, centred_y = x - x.mean(0), y - y.mean(0)

    def score(alpha: float) -> float:
        hat = centred_x @ np.linalg.solve(centred_x.T @ centred_x + alpha * np.eye(7), centred_x.T)
        return np.square(centred_y - hat @ centred_y).sum() / (1 - (1 + np.trace(hat)) / 50) ** 2

    assert score(fitted.alpha_) <= min(score(fitted.alpha_ * step) for step in (10**-0.25, 10**0.25))
    streamed = Ridge().fit_moments(Moments.of(torch.from_numpy(x), torch.from_numpy(y)))
    np.testing.assert_allclose(streamed.coef_, fitted.coef_)
