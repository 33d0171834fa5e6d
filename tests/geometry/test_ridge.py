"""Ridge: scikit-learn's coefficients, its leave-one-out, and generalised cross-validation from Moments."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge, RidgeCV

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry import Moments, linear, ridge, ridge_loo


def pair(count, source, target, seed, noise=1.0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, source)) * np.logspace(0, -1, source) + 1
    y = x @ draw.normal(size=(source, target)) + noise * draw.normal(size=(count, target)) - 2
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("count", [50, 5])
def test_equals_scikit_learn(centre, count):
    x, y = pair(count, 8, 3, 0)
    found = ridge(Moments.of(x, y), 0.7, relative=False, centre=centre)
    expected = Ridge(alpha=0.7, fit_intercept=centre).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(found.matrix.numpy(), expected.coef_.T, atol=1e-9)
    np.testing.assert_allclose(found.apply(x).numpy(), expected.predict(x.numpy()), atol=1e-9)


def test_a_relative_strength_means_the_same_at_every_scale():
    x, y = pair(50, 8, 3, 0)
    one, two = (ridge(Moments.of(factor * x, y), 0.01) for factor in (1.0, 1000.0))
    torch.testing.assert_close(one.apply(x), two.apply(1000.0 * x))
    centred = x - x.mean(0)
    assert one.details["lambda"] == pytest.approx(0.01 * float((centred.T @ centred).trace()) / 8)


def dense_gcv(x, y, penalty, centre):
    if centre:
        x, y = x - x.mean(0), y - y.mean(0)
    hat = x @ np.linalg.inv(x.T @ x + penalty * np.eye(x.shape[1])) @ x.T
    freedom = np.trace(hat) + (1 if centre else 0)
    return ((y - hat @ y) ** 2).sum() / (1 - freedom / len(x)) ** 2


@pytest.mark.parametrize("centre", [True, False])
def test_gcv_chooses_what_the_dense_formula_chooses(centre):
    x, y = pair(40, 12, 3, 1, noise=3.0)
    grid = list(np.logspace(-3, 3, 25))
    scores = [dense_gcv(x.numpy(), y.numpy(), penalty, centre) for penalty in grid]
    found = ridge(Moments.of(x, y, parts={"aa", "ab"}), relative=False, centre=centre, strengths=grid)
    assert found.details["lambda"] == pytest.approx(grid[int(np.argmin(scores))])
    assert found.details["gcv"] == pytest.approx(min(scores))
    assert 0 < int(np.argmin(scores)) < 24  # the choice was not forced


def test_gcv_does_not_choose_a_fit_that_interpolates():
    x, y = pair(10, 30, 3, 1)
    assert ridge(Moments.of(x, y)).details["strength"] > 0
    with pytest.raises(NumericalError, match="no degree of freedom"):
        ridge(Moments.of(x, y), strengths=[0.0])


def test_zero_penalty_is_least_squares():
    x, y = pair(20, 30, 3, 1)
    moments = Moments.of(x, y)
    torch.testing.assert_close(ridge(moments, 0.0, centre=False).matrix, linear(moments).matrix)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("shape", [(30, 6, 2), (12, 20, 3)])
def test_leave_one_out_equals_refitting_without_each_row(centre, shape):
    x, y = pair(*shape, seed=2)
    grid = [0.01, 0.3, 10.0]
    found = ridge_loo(x, y, grid, centre=centre)
    keep = ~np.eye(len(x), dtype=bool)

    def left_out(penalty):
        models = [Ridge(alpha=penalty, fit_intercept=centre).fit(x[k].numpy(), y[k].numpy()) for k in keep]
        return np.concatenate([model.predict(x[i : i + 1].numpy()) for i, model in enumerate(models)])

    errors = [((left_out(penalty) - y.numpy()) ** 2).mean() for penalty in grid]
    np.testing.assert_allclose(found.errors.numpy(), errors, rtol=1e-7)
    assert found.penalty == grid[int(np.argmin(errors))]
    np.testing.assert_allclose(found.predictions.numpy(), left_out(found.penalty), atol=1e-8)
    whole = Ridge(alpha=found.penalty, fit_intercept=centre).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(found.map.apply(x).numpy(), whole.predict(x.numpy()), atol=1e-8)


def test_leave_one_out_chooses_what_ridgecv_chooses():
    x, y = pair(60, 15, 4, 3, noise=4.0)
    grid = np.logspace(-3, 3, 19)
    expected = RidgeCV(alphas=grid).fit(x.numpy(), y.numpy())
    found = ridge_loo(x, y, list(grid))
    assert found.penalty == pytest.approx(expected.alpha_)
    assert float(found.errors.min()) == pytest.approx(-expected.best_score_)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_more_penalty_means_a_smaller_map(seed):
    moments = Moments.of(*pair(20, 5, 3, seed))
    norms = [float(ridge(moments, strength).matrix.norm()) for strength in (0.0, 0.1, 1.0, 10.0)]
    assert norms == sorted(norms, reverse=True)


def test_bad_penalties_and_single_rows_are_refused():
    x, y = pair(20, 5, 3, 0)
    with pytest.raises(OptionError, match="λ is -1"):
        ridge(Moments.of(x, y), -1.0)
    with pytest.raises(DataError, match="1 rows cannot leave one out"):
        ridge_loo(x[:1], y[:1])
