"""Exact Wasserstein distances: POT's network simplex, closed forms, and Sinkhorn's limit."""

import numpy as np
import ot
import pytest
import scipy.stats
import torch

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry import sinkhorn, wasserstein_exact


def points(count, width, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, width)))


@pytest.mark.parametrize("sizes", [(12, 12), (9, 14)])
def test_the_distance_is_that_of_pots_network_simplex(sizes):
    x, y = points(sizes[0], 3, 0), points(sizes[1], 3, 1)
    expected = ot.emd2([], [], ot.dist(x.numpy(), y.numpy(), metric="euclidean"))
    assert float(wasserstein_exact(x, y)) == pytest.approx(expected, abs=1e-10)


def test_equals_the_closed_form_on_a_line():
    x, y = points(20, 1, 0), points(20, 1, 1) + 2
    expected = scipy.stats.wasserstein_distance(x[:, 0].numpy(), y[:, 0].numpy())
    assert float(wasserstein_exact(x, y)) == pytest.approx(expected)


def test_a_shift_costs_its_length():
    x = points(15, 4, 0)
    shift = torch.tensor([3.0, 0.0, 4.0, 0.0]).double()
    assert float(wasserstein_exact(x, x + shift)) == pytest.approx(5.0)


def test_gradient_is_the_plans_and_finite_at_equality():
    x = points(6, 2, 0).requires_grad_()
    y = points(6, 2, 1)
    (gradient,) = torch.autograd.grad(wasserstein_exact(x, y), x)
    moved = torch.zeros_like(x)
    moved[2, 1] = 1e-6
    ends = [float(wasserstein_exact(x.detach() + s * moved, y)) for s in (1, -1)]
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float(gradient[2, 1]), abs=1e-6)
    (gradient,) = torch.autograd.grad(wasserstein_exact(x, x.detach()), x)
    assert not gradient.any()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sinkhorn_in_float32_comes_within_one_percent_at_any_scale(scale):
    x, y = (scale * points(256, 8, seed).float() for seed in (0, 1))
    exact = float(wasserstein_exact(x, y))
    solution = sinkhorn(x, y, cost="euclidean", epsilon=0.005, iterations=1000, tolerance=1e-4)
    assert float(solution.cost) == pytest.approx(exact, rel=0.01)


def test_what_is_too_large_or_not_finite_is_refused():
    with pytest.raises(OptionError, match="too many for an exact solution"):
        wasserstein_exact(points(1200, 1, 0), points(1100, 1, 1))
    with pytest.raises(DataError, match="no points"):
        wasserstein_exact(points(0, 1, 0), points(2, 1, 1))
    with pytest.raises(NumericalError, match="NaN or Inf"):
        wasserstein_exact(points(2, 1, 0) / 0, points(2, 1, 1))
