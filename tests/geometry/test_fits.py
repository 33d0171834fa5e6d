"""Maps fitted from Moments equal SciPy, scikit-learn or a dense reference of a few lines."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cross_decomposition import CCA
from sklearn.linear_model import LinearRegression

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry import LinearMap, Moments, affine, cca, linear, procrustes


def rows(count, width, seed, dtype=torch.float64):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def rotation(width, seed):
    return torch.linalg.qr(rows(width, width, seed))[0]


def test_square_procrustes_equals_scipy():
    x, y = rows(40, 6, 0), rows(40, 6, 1)
    expected, _ = scipy.linalg.orthogonal_procrustes(x.numpy(), y.numpy())
    torch.testing.assert_close(procrustes(Moments.of(x, y)).matrix, torch.from_numpy(expected))


@pytest.mark.parametrize("widths", [(5, 8), (8, 5), (6, 6)])
def test_centred_and_scaled_procrustes_minimises_the_distance(widths):
    x, y = rows(60, widths[0], 0) + 3, rows(60, widths[1], 1) - 1
    result = procrustes(Moments.of(x, y), centre=True, scale=True)
    u, _, vt = np.linalg.svd(((x - x.mean(0)).T @ (y - y.mean(0))).numpy(), full_matrices=False)
    moved = (x - x.mean(0)).numpy() @ u @ vt
    scale = (moved * (y - y.mean(0)).numpy()).sum() / (moved**2).sum()
    np.testing.assert_allclose(result.apply(x).numpy(), scale * moved + y.mean(0).numpy(), atol=1e-10)
    assert result.details["scale"] == pytest.approx(scale)


@pytest.mark.parametrize("widths", [(5, 5), (5, 9), (9, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hidden_rotation_is_found(widths, dtype):
    wide = rotation(max(widths), 7)
    hidden = wide[: widths[0], : widths[1]] if widths[0] != widths[1] else wide
    if widths[0] < widths[1]:
        hidden = wide[: widths[0]]  # orthonormal rows
        x = rows(200, widths[0], 0)
        y = x @ hidden
    else:
        hidden = wide[:, : widths[1]]  # orthonormal columns: y is the narrow one, x = y hiddenᵀ
        y = rows(200, widths[1], 0)
        x = y @ hidden.T
    result = procrustes(Moments.of(x.to(dtype), y.to(dtype)))
    torch.testing.assert_close(result.matrix, hidden, rtol=0, atol=1e-4)


def test_a_model_with_outlier_channels_is_matched_to_itself():
    # one channel of size 1e3 beside features of size 1e-1, as in real transformers: products span eight
    # decades
    x = rows(500, 64, 0, torch.float32) * torch.logspace(3, -1, 64)
    result = procrustes(Moments.of(x, x))
    seen = result.matrix @ result.matrix.T  # the projector on the observed directions
    torch.testing.assert_close(result.matrix, seen, rtol=0, atol=1e-4)
    assert result.rank >= 40


def test_procrustes_ignores_order_duplication_and_positive_scale():
    x, y = rows(50, 4, 0), rows(50, 6, 1)
    expected = procrustes(Moments.of(x, y)).matrix
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    for a, b in ((x[order], y[order]), (torch.cat([x, x]), torch.cat([y, y])), (3 * x, 0.1 * y)):
        torch.testing.assert_close(procrustes(Moments.of(a, b)).matrix, expected)


def test_few_rows_give_the_observed_rank_and_zero_outside():
    x, y = rows(3, 6, 0), rows(3, 8, 1)
    result = procrustes(Moments.of(x, y))
    assert result.rank == 3
    assert not result.full_rank
    unseen = scipy.linalg.null_space(x.numpy())
    np.testing.assert_allclose(unseen.T @ result.matrix.numpy(), 0, atol=1e-10)
    assert procrustes(Moments.of(x, y), centre=True).rank == 2
    completed = procrustes(Moments.of(x, y), complete="identity")
    torch.testing.assert_close(completed.matrix @ completed.matrix.T, torch.eye(6).double())


@pytest.mark.parametrize("power", [0.25, 0.5])
def test_whitened_procrustes_equals_the_dense_formula(power):
    x, y = rows(60, 5, 0) @ rows(5, 5, 2), rows(60, 4, 1) @ rows(4, 4, 3)
    left, right = (scipy.linalg.fractional_matrix_power((z.T @ z).numpy(), -power) for z in (x, y))
    u, _, vt = np.linalg.svd(left @ (x.T @ y).numpy() @ right, full_matrices=False)
    np.testing.assert_allclose(procrustes(Moments.of(x, y), whiten=power).matrix.numpy(), u @ vt, atol=1e-8)


def test_inverse_undoes_an_orthogonal_map_and_only_that():
    x = rows(30, 4, 0) + 2
    y = 2.5 * x @ rotation(6, 1)[:4] + 1
    result = procrustes(Moments.of(x, y), centre=True, scale=True)
    torch.testing.assert_close(result.inverse().apply(result.apply(x)), x)
    torch.testing.assert_close(result.inverse().inverse().matrix, result.matrix)
    with pytest.raises(OptionError, match="no meaningful inverse"):
        linear(Moments.of(x, y)).inverse()


def test_linear_and_affine_equal_scikit_learn():
    x, y = rows(40, 5, 0) + 1, rows(40, 3, 1) - 2
    plain, shifted = linear(Moments.of(x, y)), affine(Moments.of(x, y))
    expected = LinearRegression(fit_intercept=False).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(plain.matrix.numpy(), expected.coef_.T, atol=1e-10)
    expected = LinearRegression().fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(shifted.matrix.numpy(), expected.coef_.T, atol=1e-10)
    np.testing.assert_allclose(shifted.bias.numpy(), expected.intercept_, atol=1e-10)
    np.testing.assert_allclose(shifted.apply(x).numpy(), expected.predict(x.numpy()), atol=1e-10)


def test_least_squares_of_few_rows_has_least_norm():
    x, y = rows(4, 9, 0), rows(4, 3, 1)
    result = linear(Moments.of(x, y))
    np.testing.assert_allclose(result.matrix.numpy(), np.linalg.pinv(x.numpy()) @ y.numpy(), atol=1e-9)
    assert result.rank == 4


def test_a_dead_target_feature_comes_out_as_its_mean():
    x, y = rows(50, 6, 0), rows(50, 5, 1)
    y[:, 2] = 7.0
    for each in (affine(Moments.of(x, y)), procrustes(Moments.of(x, y), centre=True, scale=True)):
        torch.testing.assert_close(each.apply(x)[:, 2], torch.full((50,), 7.0).double(), rtol=0, atol=1e-9)


def dense_cca(x, y):
    x, y = (z - z.mean(0) for z in (x.numpy(), y.numpy()))
    return np.linalg.svd(np.linalg.qr(x)[0].T @ np.linalg.qr(y)[0])[1]


def test_cca_correlations_equal_the_dense_reference_and_scikit_learn():
    shared = rows(200, 2, 5)
    x = torch.cat([shared + 0.3 * rows(200, 2, 0), rows(200, 3, 1)], 1) @ rows(5, 5, 2)
    y = torch.cat([shared + 0.3 * rows(200, 2, 3), rows(200, 1, 4)], 1) + 4
    canonical = cca(Moments.of(x, y))
    np.testing.assert_allclose(canonical.correlations.numpy(), dense_cca(x, y), atol=1e-9)
    left, right = canonical.source.apply(x), canonical.target.apply(y)
    np.testing.assert_allclose((left.T @ left / 200).numpy(), np.eye(3), atol=1e-9)
    np.testing.assert_allclose((left.T @ right / 200).numpy(), np.diag(canonical.correlations), atol=1e-9)
    model = CCA(n_components=2, max_iter=5000, tol=1e-12).fit(x.numpy(), y.numpy())
    theirs = model.transform(x.numpy(), y.numpy())
    for k in range(2):
        correlation = np.corrcoef(theirs[0][:, k], theirs[1][:, k])[0, 1]
        assert correlation == pytest.approx(float(canonical.correlations[k]), abs=1e-5)
        assert abs(np.corrcoef(theirs[0][:, k], left[:, k].numpy())[0, 1]) == pytest.approx(1.0, abs=1e-4)


def test_regularised_cca_equals_the_dense_formula_and_weighs_columns():
    x, y = rows(30, 6, 0), rows(30, 4, 1)
    a, b = (z - z.mean(0) for z in (x.numpy(), y.numpy()))
    roots = []
    for z in (a, b):
        second = z.T @ z
        loaded = second + 0.5 * np.trace(second) / len(second) * np.eye(len(second))
        roots.append(scipy.linalg.inv(scipy.linalg.sqrtm(loaded)))
    expected = np.linalg.svd(roots[0] @ a.T @ b @ roots[1])[1]
    canonical = cca(Moments.of(x, y), regularise=0.5, size=3)
    np.testing.assert_allclose(canonical.correlations.numpy(), expected[:3], atol=1e-9)
    torch.testing.assert_close(
        canonical.weighted(2.0).source.matrix, canonical.source.matrix * canonical.correlations**2
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_cca_does_not_see_invertible_changes_of_either_side(seed):
    x, y = rows(60, 4, seed), rows(60, 3, seed + 1)
    change = rotation(4, seed + 2) * torch.tensor([0.5, 1.0, 2.0, 3.0]).double()
    canonical, two = cca(Moments.of(x, y)), cca(Moments.of(x @ change + 1, 2 * y))
    torch.testing.assert_close(canonical.correlations, two.correlations)


def test_a_map_is_saved_loaded_and_chained(tmp_path):
    x, y = rows(40, 5, 0) + 1, rows(40, 3, 1) + 2
    result = affine(Moments.of(x, y))
    result.save(tmp_path / "map.safetensors")
    loaded = LinearMap.load(tmp_path / "map.safetensors")
    assert loaded.metadata() == result.metadata()
    assert torch.equal(loaded.apply(x), result.apply(x))
    back = affine(Moments.of(y, x))
    torch.testing.assert_close(result.then(back).apply(x), back.apply(result.apply(x)))
    torch.testing.assert_close(result.apply(x, direction=True), result.apply(x) - y.mean(0))
    (tmp_path / "map.safetensors").write_bytes((tmp_path / "map.safetensors").read_bytes()[:50])
    with pytest.raises(DataError, match=r"map\.safetensors"):
        LinearMap.load(tmp_path / "map.safetensors")


def test_apply_keeps_leading_axes_and_dtype():
    result = affine(Moments.of(rows(40, 5, 0), rows(40, 3, 1)))
    moved = result.apply(rows(12, 5, 3, torch.float32).reshape(3, 4, 5))
    assert moved.shape == (3, 4, 3)
    assert moved.dtype == torch.float32
    with pytest.raises(DataError, match="width 4 do not fit a map from 5"):
        result.apply(rows(2, 4, 0))


def test_empty_moments_and_bad_options_are_refused():
    with pytest.raises(NumericalError, match="no rows"):
        procrustes(Moments.zeros(2, 2))
    with pytest.raises(OptionError, match="whitening power"):
        procrustes(Moments.of(rows(4, 2, 0), rows(4, 2, 1)), whiten=0.7)
    with pytest.raises(OptionError, match="'aa' was not collected"):
        linear(Moments.of(rows(4, 2, 0), rows(4, 2, 1), parts={"ab"}))
