from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.cross_decomposition import CCA
from sklearn.linear_model import LinearRegression

from transship_suites import load_suite, run_suite
from transship_suites.materials.small_convolutions import LAYERS, _similarities
from transship_suites.runner import Scale
from transship_suites.runner.page import suite_page


def gaussian(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, columns)))


def test_cca_and_regression_equal_scikit_learn():
    a, b = gaussian(60, 3, 0), gaussian(60, 4, 1)
    b[:, :2] += a[:, :2]
    similarities = _similarities([a], [b])
    left, right = CCA(n_components=3, max_iter=5000, tol=1e-12).fit_transform(a.numpy(), b.numpy())
    correlations = [np.corrcoef(left[:, place], right[:, place])[0, 1] for place in range(3)]
    assert float(similarities["cca"]) == pytest.approx(np.mean(correlations), abs=1e-6)
    expected = (_share(a.numpy(), b.numpy()) + _share(b.numpy(), a.numpy())) / 2
    assert float(similarities["regression"]) == pytest.approx(expected, abs=1e-10)


def _share(x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of all variance of y together that x explains."""
    residual = y - LinearRegression().fit(x, y).predict(x)
    return 1 - (residual**2).sum() / ((y - y.mean(0)) ** 2).sum()


def test_a_rotated_twin_is_found_layer_by_layer_by_cka():
    layers = [gaussian(80, 5, seed) @ gaussian(5, 5, 10 + seed) for seed in range(3)]
    rotated = [layer @ torch.linalg.qr(gaussian(5, 5, 20 + place))[0] for place, layer in enumerate(layers)]
    cka = _similarities(layers, rotated)["cka"]
    assert cka.argmax(0).tolist() == cka.argmax(1).tolist() == [0, 1, 2]
    np.testing.assert_allclose(cka.diagonal().numpy(), 1, atol=1e-6)


@pytest.mark.slow
def test_a_small_run_trains_compares_stitches_and_draws(tmp_path: Path):
    small = Scale(seeds=2, minutes=0.1, options={"widths": [4, 16], "epochs": 2, "samples": [50, 200, 1000]})
    declared = load_suite("shared-geometry")
    suite = dataclasses.replace(declared, scales={**declared.scales, "quick": small})
    result = run_suite(suite, "quick", home=tmp_path)
    assert all(spread.seeds == 2 for table in result.tables for row in table.cells for spread in row)
    assert result.curves[0].x == (4, 16)
    assert {claim.verdict for claim in result.claims} <= {"confirmed", "refuted", "undecided"}
    assert all(claim.spread.seeds == 2 for claim in result.claims)
    native = result.tables[1].cells[0][1].mean
    untranslated = result.tables[1].cells[1][1].mean
    assert native is not None
    assert untranslated is not None
    assert native > 80 > 50 > untranslated
    # widths 4, 8, 16, each in two copies, per seed: networks are shared by all cases
    assert sum(path.is_dir() for path in (tmp_path / "made" / "shared-geometry").iterdir()) == 2 * 6
    heat_maps = suite_page(suite, result).figures[-3:]
    assert all(np.shape(figure.spec["data"][0]["z"]) == (LAYERS, LAYERS) for figure in heat_maps)
