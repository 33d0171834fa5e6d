"""Kernel ridge: a bordered system, its leave-one-out, Nyström features and its settings."""

from __future__ import annotations

import numpy as np
import torch
from paired_rows import leave_out, pairs
from sklearn.kernel_ridge import KernelRidge as SklearnKernelRidge
from sklearn.linear_model import Ridge as SklearnRidge

from transship.verbs.translate import (
    KernelRidge,
    Ridge,
)
from transship.verbs.translate.maps.vectors import neighbours


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


def test_kernel_settings_are_those_that_find_most_neighbours_out_of_sample():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(300, 6))
    x, y = (np.tanh(hidden @ rng.normal(size=(6, 16))) + 0.1 * rng.normal(size=(300, 16)) for _ in range(2))
    fitted = KernelRidge(inverse=False).fit(x, y)

    def found(gamma: float, alpha: float) -> int:
        leave_one_out = KernelRidge(gamma=gamma, alpha=alpha, inverse=False).fit(x, y).leave_one_out(x, y)
        own = np.arange(300)
        pairs = zip(neighbours(y, leave_one_out, 10, own=own), neighbours(y, y, 10, own=own), strict=True)
        return sum(len(set(a) & set(b)) for a, b in pairs)

    best = found(fitted.width_factor_, fitted.penalty_)
    assert all(best >= found(width, 0.03) - 3 for width in (0.25, 0.5, 1.0))
    assert all(best >= found(fitted.width_factor_, alpha) - 3 for alpha in (0.001, 0.01, 0.1, 0.3))
    again = fitted.settled()
    assert (again.gamma, again.alpha) == (fitted.width_factor_, fitted.penalty_)
    assert not hasattr(again, "support_")
