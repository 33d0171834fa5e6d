"""Canonical correlations, against a dense reference."""

from __future__ import annotations

import numpy as np
from paired_rows import pairs

from transship.verbs.translate import (
    CCA,
    Affine,
)


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
