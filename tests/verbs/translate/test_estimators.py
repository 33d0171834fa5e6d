"""Exact cases of every translator, against dense references."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge as SklearnKernelRidge
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from transship.errors import TransshipWarning
from transship.geometry import Moments
from transship.registry import build_method, method_names
from transship.verbs.translate import (
    CCA,
    Affine,
    InverseRelativeProjection,
    KernelRidge,
    Linear,
    Procrustes,
    RelativeRepresentation,
    Ridge,
)
from transship.verbs.translate.maps.vectors import neighbours

NAMES = [name for name in method_names("translate") if name != "relative"]


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


def test_linear_affine_and_ridge_agree_with_scikit_learn():
    x, y = pairs()
    for ours, theirs in [
        (Linear(), LinearRegression(fit_intercept=False)),
        (Affine(), LinearRegression()),
        (Ridge(alpha=3.0), SklearnRidge(alpha=3.0)),
    ]:
        np.testing.assert_allclose(ours.fit(x, y).transform(x), theirs.fit(x, y).predict(x), atol=1e-9)


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


def test_kernel_ridge_agrees_with_a_bordered_system():
    x, y = pairs(count=30)
    fitted = KernelRidge(gamma=0.5, alpha=0.2).fit(x, y)
    centred = x - x.mean(0)
    gamma = 0.5 / np.square(centred).sum(1).mean()
    kernel = np.exp(-gamma * np.square(x[:, None] - x[None]).sum(2))
    border = np.block([[kernel + 0.2 * np.eye(30), np.ones((30, 1))], [np.ones((1, 30)), np.zeros((1, 1))]])
    solution = np.linalg.solve(border, np.vstack([y, np.zeros((1, y.shape[1]))]))
    np.testing.assert_allclose(fitted.transform(x), kernel @ solution[:-1] + solution[-1], atol=1e-9)
    no_intercept = SklearnKernelRidge(kernel="rbf", gamma=gamma, alpha=0.2).fit(x, y - solution[-1])
    np.testing.assert_allclose(fitted.transform(x) - solution[-1], no_intercept.predict(x), atol=1e-9)


def test_leave_one_out_of_kernel_ridge_equals_refitting():
    x, y = pairs(count=20)
    fitted = KernelRidge(gamma=0.5, alpha=0.05).fit(x, y)

    def refit(a, b):
        # the kernel's centre and width are those of all anchors: they are settings, not fitted per row
        width = 0.5 * np.square(a - a.mean(0)).sum(1).mean() / np.square(x - x.mean(0)).sum(1).mean()
        return KernelRidge(gamma=width, alpha=0.05).fit(a, b).transform

    np.testing.assert_allclose(fitted.leave_one_out(x, y), leave_out(x, y, refit), atol=1e-8)


def test_nystroem_with_all_anchors_as_landmarks_equals_the_full_kernel():
    x, y = pairs(count=40)
    full = KernelRidge(gamma=1.0, alpha=0.1).fit(x, y)
    some = KernelRidge(gamma=1.0, alpha=0.1, landmarks=39).fit(x, y)
    assert some.support_.shape[0] == 39
    from transship.verbs.translate.methods import kernel

    rows = torch.from_numpy(x - x.mean(0))
    weights, bias = kernel._nystroem(rows, torch.from_numpy(y), rows, full.rbf_gamma_, 0.1)
    predicted = kernel.rbf(rows, rows, full.rbf_gamma_) @ weights + bias
    np.testing.assert_allclose(predicted.numpy(), full.transform(x), atol=1e-6)


def test_leave_one_out_of_nystroem_equals_refitting_on_its_features():
    x, y = pairs(count=25)
    fitted = KernelRidge(gamma=1.0, alpha=0.1, landmarks=10).fit(x, y)
    from transship.verbs.translate.methods import kernel

    rows = torch.from_numpy(x - x.mean(0))
    features = kernel._features(rows, torch.from_numpy(fitted.support_), fitted.rbf_gamma_).numpy()
    expected = leave_out(features, y, lambda a, b: SklearnRidge(alpha=0.1).fit(a, b).predict)
    np.testing.assert_allclose(fitted.leave_one_out(x, y), expected, atol=1e-6)


def test_kernel_ridge_learns_what_no_linear_map_can():
    x, y = pairs(count=400, noise=0.0)
    kernel, linear = KernelRidge().fit(x[:300], y[:300]), Ridge().fit(x[:300], y[:300])
    error = [np.square(fitted.transform(x[300:]) - y[300:]).mean() for fitted in (kernel, linear)]
    assert error[0] < 0.5 * error[1]


def test_cca_finds_the_correlations_of_a_dense_reference():
    x, y = pairs(count=200)
    fitted = CCA(regularise=0.0).fit(x, y)
    qx, qy = (np.linalg.qr(part - part.mean(0))[0] for part in (x, y))
    np.testing.assert_allclose(fitted.correlations_, np.linalg.svd(qx.T @ qy)[1], atol=1e-8)
    shared = np.corrcoef(fitted.shared_source(x).T, fitted.shared_target(y).T)
    np.testing.assert_allclose(np.diagonal(shared[:5, 5:]), fitted.correlations_, atol=1e-8)


def test_cca_without_regularisation_over_all_directions_is_least_squares():
    x, y = pairs(count=200)
    np.testing.assert_allclose(CCA(regularise=0.0).fit(x, y).coef_, Affine().fit(x, y).coef_, atol=1e-7)


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


def test_relative_representation_is_invariant_to_rotation_scale_and_shift():
    x, _ = pairs(count=80)
    moved = 3.0 * x @ rotation(7, 1) + 5.0
    ours, theirs = (RelativeRepresentation().fit(part[:40]).transform(part[40:]) for part in (x, moved))
    np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_relative_representation_is_inverted_up_to_length():
    x, _ = pairs(count=80)
    fitted = RelativeRepresentation().fit(x[:40])
    back = fitted.inverse_transform(fitted.transform(x[40:])) - fitted.mean_
    cosines = (back * (x[40:] - fitted.mean_)).sum(1) / np.linalg.norm(back, axis=1)
    np.testing.assert_allclose(cosines, np.linalg.norm(x[40:] - fitted.mean_, axis=1), atol=1e-9)


def test_irp_warns_where_the_inverse_amplifies_noise():
    x, y = pairs(count=400, source=30, target=30)
    with pytest.warns(TransshipWarning, match="condition number"):
        InverseRelativeProjection(delta=0.0, n_anchors=30, subspaces=2).fit(x, y)


@pytest.mark.parametrize(("source", "target"), [(9, 9), (9, 6), (6, 9)])
@pytest.mark.parametrize("options", [{}, {"scale": False}, {"centre": False}])
def test_float32_rows_give_procrustes_the_map_of_float64_rows(source: int, target: int, options: dict):
    x, y = pairs(count=200, source=source, target=target)
    exact = Procrustes(**options).fit(x, y)
    single = Procrustes(**options).fit(x.astype(np.float32), y.astype(np.float32))
    for name in ("coef_", "intercept_", "inverse_coef_", "inverse_intercept_"):
        np.testing.assert_allclose(getattr(single, name), getattr(exact, name), atol=2e-5)


def test_kernel_settings_are_those_that_find_most_neighbours_out_of_sample():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(300, 6))
    x, y = (np.tanh(hidden @ rng.normal(size=(6, 16))) + 0.1 * rng.normal(size=(300, 16)) for _ in range(2))
    fitted = KernelRidge(inverse=False).fit(x, y)

    def found(gamma: float, alpha: float) -> int:
        made = KernelRidge(gamma=gamma, alpha=alpha, inverse=False).fit(x, y).leave_one_out(x, y)
        own = np.arange(300)
        pairs = zip(neighbours(y, made, 10, own=own), neighbours(y, y, 10, own=own), strict=True)
        return sum(len(set(a) & set(b)) for a, b in pairs)

    best = found(fitted.width_factor_, fitted.penalty_)
    assert all(best >= found(width, 0.03) - 3 for width in (0.25, 0.5, 1.0))
    assert all(best >= found(fitted.width_factor_, alpha) - 3 for alpha in (0.001, 0.01, 0.1, 0.3))
    again = fitted.settled()
    assert (again.gamma, again.alpha) == (fitted.width_factor_, fitted.penalty_)
    assert not hasattr(again, "support_")
