import itertools

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from scipy.stats import binom, ttest_rel

from transship.errors import DataError, OptionError
from transship.verbs.adapt.rows.metrics import (
    METRICS,
    TASKS,
    auroc,
    binary_cross_entropy,
    cross_entropy,
    default_metric,
    evaluate,
    find_metric,
    log_softmax,
    macro_f1,
    mean_average_precision,
    mean_squared_error,
    nrmse,
    paired_test,
    relative_l2,
    zero_one_error,
)


def classified(rows: int = 60, classes: int = 5, seed: int = 0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, rows)
    return generator.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels], labels


def tagged(rows: int = 50, labels: int = 6, seed: int = 0):
    generator = np.random.default_rng(seed)
    wanted = generator.random((rows, labels)) < 0.3
    # rounded, so that ties occur
    return np.round(generator.normal(size=(rows, labels)) + wanted, 1), wanted.astype(int)


def test_cross_entropy_and_errors_agree_with_scikit_learn():
    logits, labels = classified()
    probabilities = np.exp(log_softmax(logits))
    assert cross_entropy(logits, labels) == pytest.approx(reference.log_loss(labels, probabilities))
    predicted = logits.argmax(1)
    assert zero_one_error(predicted, labels) == reference.zero_one_loss(labels, predicted)
    assert macro_f1(predicted, labels) == pytest.approx(
        reference.f1_score(labels, predicted, average="macro")
    )


def test_cross_entropy_survives_logits_that_overflow_an_exponential():
    assert cross_entropy([[1e4, 0.0], [0.0, 1e4]], [0, 0]) == pytest.approx(5e3)
    assert binary_cross_entropy([[1e4, -1e4]], [[1, 1]]) == pytest.approx(5e3)


def test_a_class_that_only_predictions_have_counts_as_in_scikit_learn():
    labels = np.array([0, 0, 1, 1])
    predicted = np.array([0, 2, 1, 1])
    assert macro_f1(predicted, labels) == pytest.approx(
        reference.f1_score(labels, predicted, average="macro")
    )


def test_multilabel_figures_agree_with_scikit_learn():
    scores, wanted = tagged()
    probabilities = 1 / (1 + np.exp(-scores))
    expected = -np.where(wanted, np.log(probabilities), np.log(1 - probabilities)).mean()
    assert binary_cross_entropy(scores, wanted) == pytest.approx(expected)
    assert macro_f1(scores > 0, wanted) == pytest.approx(
        reference.f1_score(wanted, scores > 0, average="macro")
    )
    assert auroc(scores, wanted) == pytest.approx(reference.roc_auc_score(wanted, scores, average="macro"))
    assert mean_average_precision(scores, wanted) == pytest.approx(
        reference.average_precision_score(wanted, scores, average="macro")
    )


def test_auroc_is_the_share_of_ordered_pairs():
    scores, wanted = tagged(rows=25, labels=1, seed=3)
    pairs = [
        (above > below) + 0.5 * (above == below)
        for above, below in itertools.product(scores[wanted == 1], scores[wanted == 0])
    ]
    assert auroc(scores, wanted) == pytest.approx(np.mean(pairs))
    assert auroc(scores[:, 0], wanted[:, 0]) == pytest.approx(np.mean(pairs))


def test_auroc_and_map_of_classes():
    logits, labels = classified(classes=2, seed=4)
    assert auroc(logits, labels) == pytest.approx(
        reference.roc_auc_score(labels, logits[:, 1] - logits[:, 0])
    )
    logits, labels = classified(classes=4, seed=5)
    one_hot = np.eye(4)[labels]
    assert auroc(logits, labels) == pytest.approx(reference.roc_auc_score(one_hot, logits, average="macro"))
    assert mean_average_precision(logits, labels) == pytest.approx(
        reference.average_precision_score(one_hot, logits, average="macro")
    )


def test_undefined_labels_are_left_out():
    scores, wanted = tagged(labels=4)
    wanted[:, 1], wanted[:, 2] = 0, 1
    assert auroc(scores, wanted) == pytest.approx(auroc(scores[:, [0, 3]], wanted[:, [0, 3]]))
    assert mean_average_precision(scores, wanted) == pytest.approx(
        mean_average_precision(scores[:, [0, 2, 3]], wanted[:, [0, 2, 3]])
    )
    with pytest.raises(DataError, match="all rows or in none"):
        auroc(scores[:, 1], wanted[:, 1])


def test_the_whole_set_is_not_the_mean_of_its_halves():
    logits, labels = classified(rows=40, seed=6)
    predicted = logits.argmax(1)
    halves = [macro_f1(predicted[rows], labels[rows]) for rows in (slice(20), slice(20, None))]
    assert macro_f1(predicted, labels) != pytest.approx(np.mean(halves))


def test_nrmse_is_per_row_and_channel_and_relative_l2_per_row():
    generator = np.random.default_rng(0)
    truth, predicted = generator.normal(size=(2, 7, 3, 16))
    ratios = [
        np.sqrt(np.mean((predicted[row, channel] - truth[row, channel]) ** 2))
        / np.sqrt(np.mean(truth[row, channel] ** 2))
        for row in range(7)
        for channel in range(3)
    ]
    assert nrmse(predicted, truth) == pytest.approx(np.mean(ratios))
    whole = [
        np.linalg.norm(guess - field) / np.linalg.norm(field)
        for guess, field in zip(predicted, truth, strict=True)
    ]
    assert relative_l2(predicted, truth) == pytest.approx(np.mean(whole))
    assert mean_squared_error(predicted, truth) == pytest.approx(np.mean((predicted - truth) ** 2))


def test_nrmse_and_relative_l2_agree_on_one_channel_and_on_a_scaled_guess():
    truth = np.random.default_rng(1).normal(size=(5, 1, 8, 8))
    assert nrmse(0.9 * truth, truth) == pytest.approx(0.1)
    assert nrmse(truth + 1, truth) == pytest.approx(relative_l2(truth + 1, truth))
    assert nrmse(truth[:, 0, 0] + 1, truth[:, 0, 0]) == pytest.approx(
        relative_l2(truth[:, 0, 0] + 1, truth[:, 0, 0])
    )


def test_tensors_of_any_float_type_are_taken():
    logits, labels = classified(rows=8)
    tensor = torch.tensor(logits).bfloat16()
    assert cross_entropy(tensor, torch.tensor(labels)) == cross_entropy(tensor.float().numpy(), labels)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_metrics_and_its_own_is_among_them(task: str):
    scores, truth = classified() if task == "classification" else tagged()
    probabilities = np.exp(log_softmax(scores)) if task == "classification" else 1 / (1 + np.exp(-scores))
    predicted = scores.argmax(1) if task == "classification" else scores > 0
    if task in ("regression", "dense"):
        truth, predicted = truth + 1, scores
    figures = evaluate(task, truth, predicted, probabilities)
    assert default_metric(task).name in figures
    assert all(np.isfinite(value) for value in figures.values())
    assert set(figures) == {name for name, metric in METRICS.items() if task in metric.tasks}


def test_metrics_by_name_are_the_functions_on_probabilities():
    logits, labels = classified()
    probabilities, predicted = np.exp(log_softmax(logits)), logits.argmax(1)
    assert METRICS["cross-entropy"](labels, predicted, probabilities) == pytest.approx(
        cross_entropy(logits, labels)
    )
    assert METRICS["1-f1"](labels, predicted) == pytest.approx(1 - macro_f1(predicted, labels))
    scores, wanted = tagged()
    assert METRICS["bce"](wanted, scores > 0, 1 / (1 + np.exp(-scores))) == pytest.approx(
        binary_cross_entropy(scores, wanted)
    )


def test_one_class_leaves_the_curves_undefined_and_the_rest_defined():
    figures = evaluate("classification", [0, 0], [0, 1], [[1.0, 0.0], [0.0, 1.0]])
    assert np.isnan(figures["1-auroc"])
    assert figures["error"] == 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: default_metric("sorting"), "sorting"),
        (lambda: find_metric("1-f1", "dense"), "'1-f1' does not apply to dense"),
        (lambda: find_metric("nmse"), "nrmse"),
        (lambda: METRICS["1-map"]([0, 1], [0, 1]), "'1-map' needs probabilities"),
        (lambda: evaluate("dense", [[1.0]], [[np.nan]]), "NaN or Inf"),
        (lambda: cross_entropy([[1.0, 2.0]], [2]), "label 2 has no output among 2"),
        (lambda: cross_entropy(np.empty((0, 2)), np.empty(0, int)), "do not pair with 0 labels"),
        (lambda: zero_one_error([1], [0.5]), "are no classes"),
        (lambda: nrmse([[1.0]], [[1.0, 2.0]]), "do not pair"),
        (lambda: relative_l2([[1.0], [1.0]], [[1.0], [0.0]]), "row 2 of the truth is all zero"),
        (lambda: mean_squared_error([[np.nan]], [[1.0]]), "NaN or Inf"),
        (lambda: mean_average_precision([[1.0]], [[0]]), "no row has any label"),
        (lambda: macro_f1([[0]], [[0]]), "no label occurs"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(call, words: str):
    with pytest.raises((DataError, OptionError), match=words.replace("(", r"\(")):
        call()


def two(wrong_first: int, wrong_second: int, both: int, rows: int = 48):
    """Return labels and the answers of two models that err on so many rows each, and on so many both."""
    truth = np.arange(rows) % 3
    first, second = truth.copy(), truth.copy()
    first[:wrong_first] += 1
    second[wrong_first - both : wrong_first - both + wrong_second] += 1
    return truth, (first % 3, None), (second % 3, None)


@pytest.mark.parametrize(
    ("first", "second", "both"), [(2, 5, 2), (2, 5, 0), (1, 12, 1), (0, 7, 0), (9, 9, 3)]
)
def test_the_paired_test_of_errors_is_the_exact_one_of_mcnemar(first: int, second: int, both: int):
    truth, left, right = two(first, second, both)
    only = first - both, second - both
    exact = min(1.0, 2 * binom.cdf(min(only), sum(only), 0.5))
    assert paired_test(METRICS["error"], truth, left, right, seed=0) == pytest.approx(exact, abs=0.02)


def test_two_errors_against_five_of_48_rows_show_nothing():
    assert paired_test(METRICS["error"], *two(2, 5, 2), seed=0) > 0.2


@pytest.mark.parametrize("name", ["mse", "relative-l2"])
def test_the_paired_test_of_values_is_near_that_of_scipy(name: str):
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(60, 9)) + 3.0
    left, right = (truth + scale * generator.normal(size=truth.shape) for scale in (1.0, 1.15))
    metric = METRICS[name]
    rows = [[metric(truth[i : i + 1], each[i : i + 1]) for i in range(60)] for each in (left, right)]
    result = paired_test(metric, truth, (left, None), (right, None), seed=0)
    assert np.mean(rows[0]) == pytest.approx(metric(truth, left))  # a mean over rows
    assert result == pytest.approx(ttest_rel(*rows).pvalue, abs=0.02)


def test_figures_of_whole_sets_are_swapped_as_a_whole():
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 2, (80, 3))
    good, bad = (
        1 / (1 + np.exp(-(scale * (2 * truth - 1) + generator.normal(size=truth.shape)))) for scale in (2, 0)
    )
    metric = METRICS["1-map"]
    answers = [((part > 0.5).astype(int), part) for part in (good, bad)]
    assert paired_test(metric, truth, *answers, seed=0) < 0.02
    assert paired_test(metric, truth, answers[0], answers[0], seed=0) == 1.0
