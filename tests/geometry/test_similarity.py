"""CKA, Procrustes distance and residuals against dense references."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transship.errors import DataError, NumericalError
from transship.geometry import (
    CkaAccumulator,
    Moments,
    cka,
)


def rows(count, width, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, width)))


def rotation(width, seed):
    return torch.linalg.qr(rows(width, width, seed))[0]


def dense_cka(a, b):
    centre = np.eye(len(a)) - 1 / len(a)
    k, m = (centre @ z.numpy() @ z.numpy().T @ centre for z in (a, b))
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


def unbiased_hsic(a, b):
    """The U-statistic, term by term, with sums over distinct rows."""
    n = len(a)
    k, m = (z.numpy() @ z.numpy().T * (1 - np.eye(n)) for z in (a, b))
    rest = k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * (k.sum(0) @ m.sum(0)) / (n - 2)
    return (np.trace(k @ m) + rest) / (n * (n - 3))


def test_cka_equals_the_dense_kernel_formula():
    a, b = rows(40, 5, 0) + 2, rows(40, 8, 1) @ rows(8, 8, 2)
    assert cka(Moments.of(a, b)) == pytest.approx(dense_cka(a, b))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_cka_does_not_see_rotation_shift_or_scale(seed, scale):
    a, b = rows(30, 4, [seed, 0]), rows(30, 6, [seed, 1])
    result, two = (
        Moments.of(a, b),
        Moments.of(scale * a @ rotation(4, [seed, 2]) + 1, b @ rotation(6, [seed, 3])),
    )
    assert cka(two) == pytest.approx(cka(result), abs=1e-9)
    assert 0.0 <= cka(result) <= 1.0
    twin = Moments.of(a, scale * a @ rotation(4, [seed, 2]))
    assert cka(twin) == pytest.approx(1.0)


def test_a_constant_representation_resembles_nothing():
    constant = torch.ones(10, 3).double()
    assert cka(Moments.of(constant, rows(10, 3, 0))) == pytest.approx(0.0, abs=1e-12)


def test_one_batch_equals_the_unbiased_estimator():
    layers_a, layers_b = [rows(20, 4, 0) + 3, rows(20, 9, 1)], [rows(20, 5, 2) + rows(20, 4, 0)[:, :1]]
    accumulator = CkaAccumulator(2, 1)
    accumulator.update(layers_a, layers_b)
    for i, a in enumerate(layers_a):
        own = unbiased_hsic(a, a) * unbiased_hsic(layers_b[0], layers_b[0])
        expected = unbiased_hsic(a, layers_b[0]) / np.sqrt(own)
        assert float(accumulator.matrix()[i, 0]) == pytest.approx(expected, abs=1e-9)


def test_batches_average_hsic_and_merge():
    a, b = rows(60, 4, 0), rows(60, 5, 1)
    b[:, :4] += a
    whole, first, second = (CkaAccumulator(1, 1) for _ in range(3))
    parts = [slice(0, 20), slice(20, 40), slice(40, 60)]
    for part in parts:
        whole.update([a[part]], [b[part]])
    first.update([a[parts[0]]], [b[parts[0]]])
    for part in parts[1:]:
        second.update([a[part]], [b[part]])
    first += second
    terms = [sum(unbiased_hsic(p[s], q[s]) for s in parts) for p, q in ((a, b), (a, a), (b, b))]
    assert float(whole.matrix()) == pytest.approx(terms[0] / np.sqrt(terms[1] * terms[2]), abs=1e-9)
    torch.testing.assert_close(first.matrix(), whole.matrix())
    assert first.rows == 60


def test_minibatches_are_unbiased_where_plain_cka_is_not():
    # independent Gaussian features: the population's CKA is 0
    a, b = rows(1600, 60, 0), rows(1600, 60, 1)
    accumulator = CkaAccumulator(1, 1)
    for start in range(0, 1600, 32):
        accumulator.update([a[start : start + 32]], [b[start : start + 32]])
    assert abs(float(accumulator.matrix())) < 0.02
    assert cka(Moments.of(a[:32], b[:32])) > 0.5


def test_a_layer_with_itself_is_one_and_huge_means_do_no_harm():
    a = (rows(64, 16, 0) + 1000).float()
    accumulator = CkaAccumulator(2, 2)
    accumulator.update([a, a[:, :3]], [a, 5 * a @ rotation(16, 1).float()])
    torch.testing.assert_close(accumulator.matrix()[0], torch.ones(2).double(), rtol=0, atol=1e-3)


def test_short_batches_are_counted_as_skipped_and_bad_ones_refused():
    accumulator = CkaAccumulator(1, 1)
    accumulator.update([rows(3, 2, 0)], [rows(3, 2, 1)])
    assert (accumulator.rows, accumulator.skipped) == (0, 3)
    assert float(accumulator.matrix()) == 0.0
    with pytest.raises(DataError, match="layers"):
        accumulator.update([rows(5, 2, 0)] * 2, [rows(5, 2, 1)])
    with pytest.raises(DataError, match="rows"):
        accumulator.update([rows(5, 2, 0)], [rows(6, 2, 1)])
    with pytest.raises(NumericalError, match="NaN or Inf"):
        accumulator.update([rows(5, 2, 0) / 0], [rows(5, 2, 1)])
    assert accumulator.rows == 0
