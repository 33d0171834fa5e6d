"""Ridge: scikit-learn's coefficients, its leave-one-out, and generalised cross-validation from Moments."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge, RidgeCV

from transship.errors import DataError, NumericalError, OptionError, TransshipWarning
from transship.geometry import Moments, linear, ridge, ridge_loo, ridge_of


def pair(count, source, target, seed, noise=1.0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, source)) * np.logspace(0, -1, source) + 1
    y = x @ draw.normal(size=(source, target)) + noise * draw.normal(size=(count, target)) - 2
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("count", [50, 5])
def test_equals_scikit_learn(centre, count):
    x, y = pair(count, 8, 3, 0)
    fitted = ridge(Moments.of(x, y), 0.7, relative=False, centre=centre)
    expected = Ridge(alpha=0.7, fit_intercept=centre).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(fitted.matrix.numpy(), expected.coef_.T, atol=1e-9)
    np.testing.assert_allclose(fitted.apply(x).numpy(), expected.predict(x.numpy()), atol=1e-9)


def test_a_relative_strength_means_the_same_at_every_scale():
    x, y = pair(50, 8, 3, 0)
    first, two = (ridge(Moments.of(factor * x, y), 0.01) for factor in (1.0, 1000.0))
    torch.testing.assert_close(first.apply(x), two.apply(1000.0 * x))
    centred = x - x.mean(0)
    assert first.details["lambda"] == pytest.approx(0.01 * float((centred.T @ centred).trace()) / 8)


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
    fitted = ridge(Moments.of(x, y, parts={"aa", "ab"}), relative=False, centre=centre, strengths=grid)
    assert fitted.details["lambda"] == pytest.approx(grid[int(np.argmin(scores))])
    assert fitted.details["gcv"] == pytest.approx(min(scores))
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
    result = ridge_loo(x, y, grid, centre=centre)
    keep = ~np.eye(len(x), dtype=bool)

    def left_out(penalty):
        models = [Ridge(alpha=penalty, fit_intercept=centre).fit(x[k].numpy(), y[k].numpy()) for k in keep]
        return np.concatenate([model.predict(x[i : i + 1].numpy()) for i, model in enumerate(models)])

    errors = [((left_out(penalty) - y.numpy()) ** 2).mean() for penalty in grid]
    np.testing.assert_allclose(result.errors.numpy(), errors, rtol=1e-7)
    assert result.penalty == grid[int(np.argmin(errors))]
    np.testing.assert_allclose(result.predictions.numpy(), left_out(result.penalty), atol=1e-8)
    whole = Ridge(alpha=result.penalty, fit_intercept=centre).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(result.map.apply(x).numpy(), whole.predict(x.numpy()), atol=1e-8)


def with_copies(x, y, rows):
    again = torch.as_tensor(rows)
    return torch.cat([x, x[again]]), torch.cat([y, y[again]])


@pytest.mark.parametrize("shape", [(30, 6, 2), (12, 20, 3)])
def test_equal_rows_are_left_out_together(shape):
    x, y = with_copies(*pair(*shape, seed=2), [3, 3, 5])
    actual = ridge_loo(x, y, [0.3])
    expected = []
    for row in range(len(x)):
        others = (x != x[row]).any(1).numpy()
        model = Ridge(alpha=0.3).fit(x.numpy()[others], y.numpy()[others])
        expected.append(model.predict(x[row : row + 1].numpy())[0])
    np.testing.assert_allclose(actual.predictions.numpy(), expected, atol=1e-8)
    assert float(actual.errors[0]) == pytest.approx(((np.array(expected) - y.numpy()) ** 2).mean())


def held_out(map_, x_scale, weight, noise, offset):
    """The expected squared error on new rows offset + N(0, diag(scale²)) with y = x W + noise."""
    off = map_.matrix - weight
    shift = map_.apply(offset[None]) - offset[None] @ weight
    return float((off * x_scale[:, None]).square().sum() + shift.square().sum()) + noise**2 * weight.shape[1]


def problem(seed):
    """Rows below, at and above the width; none, some or a quarter of them twice, with rounding between."""
    draw = np.random.default_rng(seed)
    width = int(draw.integers(80, 120))
    count = int(width * draw.choice([0.5, 0.8, 0.95, 1.0, 1.05, 1.3, 3.0]))
    scale = torch.from_numpy(np.arange(1, width + 1) ** -draw.uniform(0.0, 1.5))
    weight = torch.from_numpy(draw.normal(size=(width, 5))) / scale.norm()
    noise, offset = 10 ** draw.uniform(-0.5, 0.5), torch.ones(width, dtype=torch.float64)
    x = offset + torch.from_numpy(draw.normal(size=(count, width))) * scale
    y = x @ weight + noise * torch.from_numpy(draw.normal(size=(count, 5)))
    x, y = with_copies(x, y, draw.integers(0, count, int(draw.choice([0, 1, 3, count // 4]))))
    x[count:] *= 1 + 1e-7 * torch.from_numpy(draw.normal(size=x[count:].shape))
    return x, y, (scale, weight, noise, offset)


def test_gcv_and_leave_one_out_are_equally_good_with_and_without_copies():
    """200 problems: their held-out errors differ by less than 1 % on average, and in most of them at all."""
    differences = []
    for seed in range(200):
        x, y, known = problem(seed)
        by_rows, by_moments = ridge_loo(x, y).map, ridge(Moments.of(x, y, parts={"aa", "ab"}))
        differences.append(held_out(by_moments, *known) / held_out(by_rows, *known) - 1)
    assert abs(np.mean(differences)) < 0.01
    assert np.mean(np.abs(differences) < 0.01) > 0.85  # 0.905 here
    assert np.abs(differences).max() < 0.1


@pytest.mark.parametrize("copies", [0, 1, 3, 40])
@pytest.mark.parametrize("count", [48, 64, 200])
def test_no_copies_make_either_choice_worse_than_scikit_learns(count, copies):
    draw = np.random.default_rng(copies)
    weight = torch.from_numpy(draw.normal(size=(64, 3)))
    x = torch.from_numpy(draw.normal(size=(count + 500, 64)))
    y = x @ weight + 4 * torch.from_numpy(draw.normal(size=(count + 500, 3)))
    known, wanted = with_copies(x[:count], y[:count], draw.integers(0, count, copies))
    grid = np.logspace(-6, 2, 33) * float((known - known.mean(0)).square().sum()) / 64
    theirs = RidgeCV(alphas=grid).fit(known.numpy(), wanted.numpy()).predict(x[count:].numpy())
    error = ((theirs - y[count:].numpy()) ** 2).mean()
    for map_ in (ridge_of(known, wanted), ridge(Moments.of(known, wanted))):
        assert float((map_.apply(x[count:]) - y[count:]).square().mean()) < 1.05 * error


def test_copies_are_seen_across_updates_halves_and_files(tmp_path):
    x, y = pair(60, 40, 3, 0)
    halves = [Moments.of(x[rows], y[rows]) for rows in (slice(40), slice(30, 60))]
    whole = halves[0] + halves[1]
    assert whole.count == 70
    assert whole.distinct == whole.swapped().distinct == pytest.approx(60)
    assert whole.scaled(0.5).distinct == pytest.approx(30)
    whole.save(tmp_path / "moments.safetensors")
    read = Moments.load(tmp_path / "moments.safetensors")
    assert read.distinct == whole.distinct
    read.marks = None  # as files of before hold none
    assert read.distinct == 70


def test_a_strength_at_the_end_of_the_grid_is_told():
    x, y = pair(60, 15, 3, 0)
    assert ridge(Moments.of(x, y), strengths=list(np.logspace(-12, -7, 6))).details["end_of_grid"] == 1
    uncounted = Moments.of(*with_copies(*pair(30, 40, 3, 0), [4]))
    uncounted.marks = None
    with pytest.warns(TransshipWarning, match="the best λ is the least of 33, which nearly interpolates"):
        assert ridge(uncounted).details["end_of_grid"] == -1
    assert "end_of_grid" not in ridge_of(*pair(60, 15, 3, 0, noise=3.0)).details
    exact = ridge_of(x, x[:, :2])  # no noise: any small λ will do
    assert exact.details["end_of_grid"] == -1
    coarse = ridge(Moments.of(x, x[:, :2]), strengths=[0.01, 0.1, 1.0])  # 60 rows, 15 directions
    assert coarse.details["end_of_grid"] == -1


def test_leave_one_out_chooses_what_ridgecv_chooses():
    x, y = pair(60, 15, 4, 3, noise=4.0)
    grid = np.logspace(-3, 3, 19)
    expected = RidgeCV(alphas=grid).fit(x.numpy(), y.numpy())
    actual = ridge_loo(x, y, list(grid))
    assert actual.penalty == pytest.approx(expected.alpha_)
    assert float(actual.errors.min()) == pytest.approx(-expected.best_score_)


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
