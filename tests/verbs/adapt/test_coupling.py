import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.verbs.adapt.bound.coupling import (
    distortions,
    divergence,
    entropy,
    greedy_couplings,
    least_distortions,
    least_entropy_coupling,
    table_distortion,
)

seeds = st.integers(0, 10_000)


def simplex(*shape: int, seed: int, sharpness: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], sharpness), shape[:-1])


@given(seed=seeds, n=st.integers(1, 5), m=st.integers(1, 5))
def test_couplings_have_the_sums_they_should(seed: int, n: int, m: int):
    p, q = simplex(4, n, seed=seed), simplex(4, m, seed=seed + 1)
    table = greedy_couplings(p, q)
    np.testing.assert_allclose(table.sum(2), p, atol=1e-12)
    np.testing.assert_allclose(table.sum(1), q, atol=1e-12)
    assert table.min() >= 0


@given(seed=seeds)
def test_the_greedy_coupling_lies_within_a_bit_of_the_least_entropy(seed: int):
    p, q = simplex(1, 3, seed=seed), simplex(1, 2, seed=seed + 1)
    least = least_entropy_coupling(p[0], q[0])
    np.testing.assert_allclose(least.sum(1), p[0], atol=1e-9)
    np.testing.assert_allclose(least.sum(0), q[0], atol=1e-9)
    bottom, greedy = float(entropy(least.ravel())), float(entropy(greedy_couplings(p, q).ravel()))
    assert bottom - 1e-9 <= greedy <= bottom + np.log(2)
    assert bottom >= max(float(entropy(p[0])), float(entropy(q[0]))) - 1e-9
    assert float(least_distortions(p, q)[0]) <= bottom - float(entropy(p[0])) + 1e-9


def test_no_coupling_of_a_fine_grid_has_less_entropy_than_the_vertex_found():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4])
    least = float(entropy(least_entropy_coupling(p, q).ravel()))
    for a in np.linspace(0, 0.5, 41):
        for b in np.linspace(0, 0.3, 25):
            c = 0.6 - a - b
            if 0 <= c <= 0.2:
                table = np.array([[a, 0.5 - a], [b, 0.3 - b], [c, 0.2 - c]])
                assert float(entropy(table.ravel())) >= least - 1e-9
    # 0.6 = 0.3 + 0.2 + 0.1 or 0.5 + 0.1: one row is split, and the smallest split is best
    assert least == pytest.approx(float(entropy(np.array([0.5, 0.3, 0.1, 0.1]))))


def test_distortion_is_zero_where_source_labels_decide_and_all_of_the_target_where_there_is_one():
    decided = simplex(5, 4, seed=0)
    assert distortions(decided, decided).max() < 1e-12
    assert distortions(np.ones((5, 1)), decided) == pytest.approx(entropy(decided))


def test_the_table_of_the_whole_set_is_counted_on_one_hot_predictions():
    generator = np.random.default_rng(0)
    z, codes = generator.integers(0, 4, 200), generator.integers(0, 3, 200)
    counted = 0.0
    for label in range(4):
        inside = codes[z == label]
        shares = np.bincount(inside, minlength=3) / len(inside)
        counted -= len(inside) / 200 * sum(share * np.log(share) for share in shares if share > 0)
    assert table_distortion(np.eye(4)[z], codes, 3) == pytest.approx(counted)
    assert table_distortion(np.eye(3)[codes], codes, 3) == pytest.approx(0.0, abs=1e-12)
    independent = np.repeat(simplex(1, 4, seed=1), 200, 0)
    shares = np.bincount(codes) / 200
    assert table_distortion(independent, codes, 3) == pytest.approx(float(entropy(shares)))


def test_divergence_is_zero_of_itself_and_positive_of_others():
    p, q = simplex(6, 4, seed=0), simplex(6, 4, seed=1)
    assert divergence(p, p) == pytest.approx(np.zeros(6))
    assert (divergence(p, q) > 0).all()
    assert divergence([[1.0, 0.0]], [[0.5, 0.5]]) == pytest.approx([np.log(2)])
