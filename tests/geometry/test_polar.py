"""The polar factor: SciPy's answer where it is unique, a stated rule where it is not."""

import inspect

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transship.errors import NumericalError, OptionError
from transship.geometry import polar


def matrix(rows, columns, seed, rank=None, decades=1.0):
    """Return U diag(10^0 … 10^−decades) Vᵀ of the given rank."""
    rank = min(rows, columns) if rank is None else rank
    left, right = (
        np.linalg.qr(np.random.default_rng([seed, n]).normal(size=(n, rank)))[0] for n in (rows, columns)
    )
    return torch.from_numpy(left * np.logspace(0, -decades, rank) @ right.T)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_full_rank_gives_orthonormal_rows_or_columns_and_a_symmetric_rest(seed, rows, columns):
    cross = matrix(rows, columns, seed)
    polar_factor = polar(cross)
    narrow = (
        polar_factor.factor @ polar_factor.factor.T
        if rows <= columns
        else polar_factor.factor.T @ polar_factor.factor
    )
    torch.testing.assert_close(narrow, torch.eye(min(rows, columns)).double(), rtol=0, atol=1e-12)
    rest = polar_factor.factor.T @ cross  # C = T H: H symmetric and not negative
    torch.testing.assert_close(rest, rest.T, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(rest).min() > -1e-12
    assert polar_factor.full_rank
    assert polar_factor.rank == min(rows, columns)


def test_square_equals_scipy():
    cross = matrix(7, 7, 3, decades=6)
    torch.testing.assert_close(polar(cross).factor, torch.from_numpy(scipy.linalg.polar(cross.numpy())[0]))


@pytest.mark.parametrize("shape", [(40, 300), (300, 40), (120, 120)])
@pytest.mark.parametrize("decades", [0, 3, 5])
def test_the_gram_route_is_as_accurate_as_the_svd(shape, decades):
    cross = matrix(*shape, seed=1, decades=decades)
    fast, slow = polar(cross, route="gram"), polar(cross, route="svd")
    assert (fast.route, fast.rank) == ("gram", slow.rank)
    assert float((fast.factor - slow.factor).norm() / slow.factor.norm()) < 1e-9
    torch.testing.assert_close(fast.singular_values, slow.singular_values, rtol=1e-8, atol=0)


@pytest.mark.parametrize("decades", [6.5, 9, 14])
def test_the_gram_route_notices_ill_conditioning_and_falls_back(decades):
    cross = matrix(60, 200, seed=1, decades=decades)
    polar_factor = polar(cross, route="gram")
    assert polar_factor.route == "svd"
    assert torch.equal(polar_factor.factor, polar(cross, route="svd").factor)


def test_the_gram_route_leaves_rank_to_the_svd():
    polar_factor = polar(matrix(60, 200, seed=1, rank=20), route="gram")
    assert (polar_factor.route, polar_factor.rank) == ("svd", 20)
    cut = polar(matrix(60, 200, seed=1, decades=4), route="gram", tolerance=1e-2)
    assert (cut.route, cut.rank) == ("svd", 30)


def test_long_matrices_take_the_gram_route_by_themselves():
    assert polar(matrix(50, 400, 0)).route == "gram"
    assert polar(matrix(50, 60, 0)).route == "gram"
    assert polar(matrix(50, 50, 0)).route == "svd"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 9), columns=st.integers(2, 9), data=st.data())
def test_zero_completion_is_a_partial_isometry_of_the_observed_rank(seed, rows, columns, data):
    rank = data.draw(st.integers(1, min(rows, columns)))
    cross = matrix(rows, columns, seed, rank=rank)
    polar_factor = polar(cross)
    assert polar_factor.rank == rank
    values = torch.linalg.svdvals(polar_factor.factor)
    torch.testing.assert_close(values, (torch.arange(len(values)) < rank).double(), rtol=0, atol=1e-9)
    assert float((polar_factor.factor * cross).sum()) == pytest.approx(
        float(torch.linalg.svdvals(cross).sum())
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 9), columns=st.integers(2, 9), data=st.data())
def test_identity_completion_is_a_full_isometry_that_rounding_does_not_choose(seed, rows, columns, data):
    rank = data.draw(st.integers(1, min(rows, columns) - 1))
    cross = matrix(rows, columns, seed, rank=rank)
    polar_factor = polar(cross, complete="identity", tolerance=1e-8)
    torch.testing.assert_close(
        torch.linalg.svdvals(polar_factor.factor), torch.ones(min(rows, columns)).double(), rtol=0, atol=1e-9
    )
    noise = 1e-13 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).double()
    again = polar(cross + noise, complete="identity", tolerance=1e-8)
    assert (polar_factor.rank, again.rank) == (rank, rank)
    torch.testing.assert_close(polar_factor.factor, again.factor, rtol=0, atol=1e-4)


def test_identity_completion_of_nothing_is_the_identity():
    torch.testing.assert_close(
        polar(torch.zeros(3, 5).double(), complete="identity").factor, torch.eye(3, 5).double()
    )


def test_identity_completion_survives_null_spaces_that_the_identity_does_not_join():
    cross = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()  # e1 → e2: what is left is e2 → e1
    torch.testing.assert_close(
        polar(cross, complete="identity").factor, torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    )


def test_svd_completion_is_the_papers_full_isometry():
    polar_factor = polar(matrix(4, 6, 0, rank=2), complete="svd")
    assert polar_factor.rank == 2
    torch.testing.assert_close(torch.linalg.svdvals(polar_factor.factor), torch.ones(4).double())


@pytest.mark.parametrize("shape", [(90, 90), (60, 400)])
def test_one_and_two_threads_agree_and_find_the_same_rank(shape):
    def with_threads(count, cross, **options):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return polar(cross, **options)
        finally:
            torch.set_num_threads(before)

    full, deficient = matrix(*shape, seed=2, decades=4), matrix(*shape, seed=3, rank=33)
    torch.testing.assert_close(with_threads(1, full).factor, with_threads(2, full).factor, rtol=0, atol=1e-8)
    for rule in ("zero", "identity"):
        first, two = (with_threads(n, deficient, complete=rule) for n in (1, 2))
        assert first.rank == two.rank == 33
        torch.testing.assert_close(first.factor, two.factor, rtol=0, atol=1e-8)


def test_float32_in_is_float32_out_through_float64():
    cross = matrix(5, 8, 0)
    polar_factor = polar(cross.float())
    assert polar_factor.factor.dtype == torch.float32
    torch.testing.assert_close(polar_factor.factor, polar(cross).factor.float())


def test_what_is_not_finite_or_not_an_option_is_refused():
    with pytest.raises(NumericalError, match=r"block\.3: the cross moment holds NaN"):
        polar(torch.full((2, 2), torch.nan).double(), where="block.3")
    with pytest.raises(OptionError, match="no completion 'random'"):
        inspect.unwrap(polar)(torch.eye(2), complete="random")  # without the tests' type check
