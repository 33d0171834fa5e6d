"""Metrics against scikit-learn, SciPy or a loop."""

import inspect

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transship import geometry
from transship.errors import DataError

draw = np.random.default_rng(0)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_cosine_equals_a_loop_and_is_zero_for_zero_rows(make):
    a, b = draw.normal(size=(5, 3)), draw.normal(size=(5, 3))
    b[2] = 0
    expected = [
        x @ y / (np.linalg.norm(x) * np.linalg.norm(y)) if y.any() else 0.0 for x, y in zip(a, b, strict=True)
    ]
    np.testing.assert_allclose(geometry.cosine(make(a), make(b)), expected)


def test_bfloat16_is_taken():
    a = torch.ones(2, 4, dtype=torch.bfloat16)
    np.testing.assert_allclose(geometry.cosine(a, a), 1.0)


def test_accuracies_equal_scikit_learn():
    labels, predicted = draw.integers(0, 3, 50), draw.integers(0, 3, 50)
    assert geometry.accuracy(predicted, torch.from_numpy(labels)) == pytest.approx(
        sklearn.metrics.accuracy_score(labels, predicted)
    )
    assert geometry.balanced_accuracy(predicted, labels) == pytest.approx(
        sklearn.metrics.balanced_accuracy_score(labels, predicted)
    )
    assert geometry.accuracy(np.array(["a", "b"]), np.array(["a", "c"])) == 0.5


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 9), chunk=st.integers(1, 8))
def test_top_k_equals_a_full_sort(seed, k, chunk):
    rng = np.random.default_rng(seed)
    queries, gallery = rng.normal(size=(7, 3)), rng.normal(size=(10, 3))
    own = rng.integers(-1, 10, 7)
    scores = queries @ (gallery / np.linalg.norm(gallery, axis=1, keepdims=True)).T
    for row, column in enumerate(own):
        if column >= 0:
            scores[row, column] = -np.inf
    expected = np.argsort(-scores, axis=1)[:, :k]
    np.testing.assert_array_equal(geometry.top_k(queries, gallery, k, exclude=own, chunk=chunk), expected)


def test_ties_go_to_the_lower_row():
    np.testing.assert_array_equal(geometry.top_k(np.ones((1, 2)), np.ones((4, 2)), 3), [[0, 1, 2]])


def test_recall_counts_the_overlap_of_two_lists():
    found, relevant = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[3, 9, 1], [7, 8, 9]])
    assert geometry.recall_at(found, relevant) == pytest.approx((2 / 3 + 0) / 2)
    assert geometry.recall_at(found, relevant, 1) == 0.0
    assert geometry.recall_at(found, found[:, ::-1].copy(), 3) == 1.0


def test_twin_recall_and_reciprocal_rank():
    found, twins = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), np.array([1, 6, 0])
    assert geometry.twin_recall(found, twins) == pytest.approx(1 / 3)
    assert geometry.twin_recall(found, twins, 3) == pytest.approx(2 / 3)
    assert geometry.reciprocal_rank(found, twins) == pytest.approx((1 + 1 / 3 + 0) / 3)


@pytest.mark.parametrize("k", [1, 3, 10, 20])
def test_ndcg_equals_scikit_learn(k):
    relevance, scores = draw.integers(0, 4, size=(6, 12)).astype(float), draw.normal(size=(6, 12))
    found = np.argsort(-scores, axis=1)
    assert geometry.ndcg_at(relevance, found, k) == pytest.approx(
        sklearn.metrics.ndcg_score(relevance, scores, k=k)
    )


def test_queries_without_relevant_rows_do_not_count_in_ndcg():
    relevance = np.array([[0.0, 1.0], [0.0, 0.0]])
    assert geometry.ndcg_at(relevance, np.array([[1, 0], [0, 1]]), 2) == 1.0
    with pytest.raises(DataError, match="no query has a relevant row"):
        geometry.ndcg_at(relevance[1:], np.array([[0, 1]]), 2)


def test_correlations_equal_scipy():
    a, b = draw.integers(0, 5, 40), draw.normal(size=40)  # with ties
    assert geometry.spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert geometry.pearson(a, b) == pytest.approx(scipy.stats.pearsonr(a, b).statistic)
    assert geometry.pearson(np.ones(5), b[:5]) == 0.0


def test_relative_error():
    assert geometry.relative_error(np.array([3.0, 0.0]), np.array([0.0, 4.0])) == pytest.approx(5 / 4)
    assert geometry.relative_error(np.zeros(2), np.zeros(2)) == 0.0


def test_sets_that_do_not_pair_are_refused():
    with pytest.raises(DataError, match="2 rows do not pair with 3"):
        inspect.unwrap(geometry.accuracy)(np.zeros(2), np.zeros(3))  # without the tests' shape check
    with pytest.raises(DataError, match="cannot take 5 of 3"):
        geometry.top_k(np.ones((1, 2)), np.ones((4, 2)), 5, exclude=np.array([0]))
