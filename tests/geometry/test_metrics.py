"""Metrics against scikit-learn, SciPy or a loop."""

import inspect

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

from transship import geometry
from transship.errors import DataError

draw = np.random.default_rng(0)


def test_accuracies_equal_scikit_learn():
    labels, predicted = draw.integers(0, 3, 50), draw.integers(0, 3, 50)
    assert geometry.accuracy(predicted, torch.from_numpy(labels)) == pytest.approx(
        sklearn.metrics.accuracy_score(labels, predicted)
    )
    assert geometry.accuracy(np.array(["a", "b"]), np.array(["a", "c"])) == 0.5


def test_twin_recall_counts_twins_among_the_first():
    array, twins = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), np.array([1, 6, 0])
    assert geometry.twin_recall(array, twins) == pytest.approx(1 / 3)
    assert geometry.twin_recall(array, twins, 3) == pytest.approx(2 / 3)


def test_correlations_equal_scipy():
    a, b = draw.integers(0, 5, 40), draw.normal(size=40)  # with ties
    assert geometry.spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert geometry.pearson(a, b) == pytest.approx(scipy.stats.pearsonr(a, b).statistic)
    assert geometry.pearson(np.ones(5), b[:5]) == 0.0


def test_sets_that_do_not_pair_are_refused():
    with pytest.raises(DataError, match="2 rows do not pair with 3"):
        inspect.unwrap(geometry.accuracy)(np.zeros(2), np.zeros(3))  # without the tests' shape check
