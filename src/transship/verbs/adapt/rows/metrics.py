"""Losses and scores of an adapted model, each on the whole set and never averaged over batches.

Means of F1, AUROC or mAP over batches are other numbers than those of the whole set, so every function here
takes all rows at once. A `Metric` is one of them by name, as an error: the smaller the better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transship.errors import DataError, OptionError
from transship.registry import unknown

Array = npt.NDArray[Any]
# predictions of a model, and its probabilities where it has any
Answers = tuple[Any, Any]
Task = Literal["classification", "multilabel", "regression", "dense"]
TASKS: tuple[Task, ...] = ("classification", "multilabel", "regression", "dense")


def cross_entropy(logits: Any, labels: Any) -> float:
    """Return the mean of −log softmax(logits)[label] in nats; `sklearn.metrics.log_loss` of the softmax."""
    scores, classes = _floats(logits), _classes(labels)
    _paired(scores, classes, "cross-entropy")
    _within(classes, scores.shape[1], "cross-entropy")
    return float(-log_softmax(scores)[np.arange(len(classes)), classes].mean())


def binary_cross_entropy(logits: Any, labels: Any) -> float:
    """Return the mean over rows and labels of −y log σ(x) − (1 − y) log(1 − σ(x)) in nats."""
    scores, wanted = _floats(logits), _floats(labels)
    _same_shape(scores, wanted, "binary cross-entropy")
    # log(1 + exp(x)) − x y, written so that neither end overflows
    return float((np.maximum(scores, 0) - scores * wanted + np.log1p(np.exp(-np.abs(scores)))).mean())


def mean_squared_error(predicted: Any, truth: Any) -> float:
    """Return the mean of (p − t)² over all entries; `sklearn.metrics.mean_squared_error`."""
    left, right = _floats(predicted), _floats(truth)
    _same_shape(left, right, "mean squared error")
    return float(np.square(left - right).mean())


def nrmse(predicted: Any, truth: Any) -> float:
    """Return PDEBench's nRMSE: √mean (p − t)² / √mean t² over space, averaged over rows and channels.

    The first axis holds rows; of three or more axes the second holds channels, the rest are space.
    """
    left, right = _floats(predicted), _floats(truth)
    _same_shape(left, right, "nRMSE")
    if left.ndim >= 3:
        left, right = left.reshape(-1, *left.shape[2:]), right.reshape(-1, *right.shape[2:])
    return _mean_ratio(left, right)


def relative_l2(predicted: Any, truth: Any) -> float:
    """Return the mean over rows of ‖p − t‖₂ / ‖t‖₂ with space and channels flattened.

    With one channel it is the same number as `nrmse`.
    """
    left, right = _floats(predicted), _floats(truth)
    _same_shape(left, right, "relative l2")
    return _mean_ratio(left, right)


def zero_one_error(predicted: Any, labels: Any) -> float:
    """Return the share of rows whose predicted class is not their label."""
    classes, wanted = _classes(predicted), _classes(labels)
    _same_shape(classes, wanted, "0-1 error")
    return float((classes != wanted).mean())


def macro_f1(predicted: Any, labels: Any) -> float:
    """Return the plain mean over classes of F1 = 2 TP / (2 TP + FP + FN).

    Classes count that occur among labels or predictions, as in `sklearn.metrics.f1_score`. Arrays of two axes
    are multi-label, 0 or 1; labels without any row or prediction are left out.
    """
    guess, true = np.asarray(as_numpy(predicted)), np.asarray(as_numpy(labels))
    _same_shape(guess, true, "F1")
    if true.ndim == 2:
        guess, true = guess.astype(bool), true.astype(bool)
    else:
        guess, true = _classes(guess), _classes(true)
        both = np.union1d(guess, true)
        guess, true = guess[:, None] == both, true[:, None] == both
    hits, mistakes = (guess & true).sum(0), (guess ^ true).sum(0)
    present = (2 * hits + mistakes) > 0
    if not present.any():
        raise DataError("no label occurs in any row", where="F1", fix="give rows with labels")
    return float((2 * hits[present] / (2 * hits[present] + mistakes[present])).mean())


def auroc(scores: Any, labels: Any) -> float:
    """Return the area under the ROC curve, averaged over labels; undefined labels are left out.

    It is the probability that a row with the label scores above one without (ties count half). Labels of one
    axis are classes: two columns of scores (or one) give the usual binary figure, more give one-vs-rest. A
    label that every row or no row has is undefined.
    """
    from scipy.stats import rankdata

    values, wanted = _scores_and_hits(scores, labels, "AUROC")
    positives = wanted.sum(0)
    defined = (positives > 0) & (positives < len(wanted))
    if not defined.any():
        raise DataError(
            "every label is in all rows or in none", where="AUROC", fix="give rows with and without a label"
        )
    values, wanted, positives = values[:, defined], wanted[:, defined], positives[defined]
    # Mann and Whitney: the ranks of the positives, less those they take from one another
    above = (rankdata(values, axis=0) * wanted).sum(0) - positives * (positives + 1) / 2
    return float((above / (positives * (len(wanted) - positives))).mean())


def mean_average_precision(scores: Any, labels: Any) -> float:
    """Return Σ_k (R_k − R_{k−1}) P_k averaged over labels (macro); labels without a row are left out.

    `sklearn.metrics.average_precision_score` of each label. Rows of equal score enter together.
    """
    values, wanted = _scores_and_hits(scores, labels, "mAP")
    present = wanted.any(0)
    if not present.any():
        raise DataError("no row has any label", where="mAP", fix="give rows with labels")
    return float(
        np.mean([_average_precision(values[:, label], wanted[:, label]) for label in np.flatnonzero(present)])
    )


@dataclass(frozen=True)
class Metric:
    """A figure by name; the smaller the better, so that F1, AUROC and mAP are taken from 1.

    Attributes:
        name: as options and tables spell it.
        tasks: what it applies to.
        function: from truth, prediction and scores to the figure.
        needs_scores: whether probabilities are needed and predictions are not enough.
        by_row: whether the figure of a set is the mean of the figures of its rows.
    """

    name: str
    tasks: tuple[str, ...]
    function: Callable[[Any, Any, Any], float]
    needs_scores: bool = False
    by_row: bool = True

    def __call__(self, truth: Any, prediction: Any, scores: Any = None) -> float:
        """Return the figure on the whole set.

        Args:
            truth: classes [rows], 0/1 labels [rows, labels], or values [rows, …].
            prediction: likewise.
            scores: probabilities [rows, classes] or [rows, labels], where there are any.
        """
        if self.needs_scores and scores is None:
            raise OptionError(
                f"'{self.name}' needs probabilities",
                where="metric",
                fix="give scores, or use a metric of predictions",
            )
        return self.function(truth, prediction, scores)


def _logs(scores: Any) -> Array:
    result: Array = np.log(np.clip(_floats(scores), _TINY, None))
    return result


def _cross_entropy_of(truth: Any, prediction: Any, scores: Any) -> float:
    return cross_entropy(_logs(scores), truth)


def _bce_of(truth: Any, prediction: Any, scores: Any) -> float:
    probabilities = _floats(scores)
    return binary_cross_entropy(_logs(probabilities) - _logs(1.0 - probabilities), truth)


_TINY = 1e-12
_POINTS, _VALUES = ("classification", "multilabel"), ("regression", "dense")
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("error", ("classification",), lambda t, p, s: zero_one_error(p, t)),
        Metric("cross-entropy", ("classification",), _cross_entropy_of, needs_scores=True),
        Metric("bce", ("multilabel",), _bce_of, needs_scores=True),
        Metric("1-f1", _POINTS, lambda t, p, s: 1.0 - macro_f1(p, t), by_row=False),
        Metric("1-auroc", _POINTS, lambda t, p, s: 1.0 - auroc(s, t), needs_scores=True, by_row=False),
        Metric(
            "1-map",
            _POINTS,
            lambda t, p, s: 1.0 - mean_average_precision(s, t),
            needs_scores=True,
            by_row=False,
        ),
        Metric("mse", _VALUES, lambda t, p, s: mean_squared_error(p, t)),
        Metric("nrmse", _VALUES, lambda t, p, s: nrmse(p, t)),
        Metric("relative-l2", _VALUES, lambda t, p, s: relative_l2(p, t)),
    )
}
_DEFAULT: Mapping[str, str] = {
    "classification": "error",
    "multilabel": "1-map",
    "regression": "mse",
    "dense": "relative-l2",
}


def find_metric(name: str, task: str | None = None) -> Metric:
    """Return the metric of that name; one that is unknown or unfit for the task is refused by name."""
    if name not in METRICS:
        raise unknown(name, METRICS, kind="metric", where="metric")
    if task is not None and task not in METRICS[name].tasks:
        fitting = [metric.name for metric in METRICS.values() if task in metric.tasks]
        raise OptionError(
            f"'{name}' does not apply to {task}", where="metric", fix=f"choose one of {', '.join(fitting)}"
        )
    return METRICS[name]


def default_metric(task: str) -> Metric:
    """Return the metric by which models of a task are chosen unless the user says otherwise."""
    if task not in _DEFAULT:
        raise unknown(task, TASKS, kind="task", where="task")
    return METRICS[_DEFAULT[task]]


def evaluate(task: str, truth: Any, prediction: Any, scores: Any = None) -> dict[str, float]:
    """Return every metric of the task by name; NaN where it is undefined or scores are wanting."""
    figures = {}
    for metric in METRICS.values():
        if task in metric.tasks:
            try:
                figures[metric.name] = metric(truth, prediction, scores)
            except (DataError, OptionError):
                # a set with one label has no curve, a truth of zeros no relative error
                figures[metric.name] = float("nan")
    if all(np.isnan(value) for value in figures.values()):
        default_metric(task)(truth, prediction, scores)  # nothing can be measured: say why
    return figures


def paired_test(metric: Metric, truth: Array, first: Answers, second: Answers, *, seed: int) -> float:
    """Return the p-value of a paired permutation test that two models have the same figure on these rows.

    Rows whose answers are swapped at random show what chance makes of the difference (two-sided). What is a
    mean over rows takes 5,000 draws, other figures 200.
    """
    generator, rows = np.random.default_rng(seed), len(truth)
    if metric.by_row:
        figures = [
            [
                metric(
                    truth[row : row + 1], *(part if part is None else part[row : row + 1] for part in answers)
                )
                for row in range(rows)
            ]
            for answers in (first, second)
        ]
        gaps = np.subtract(figures[0], figures[1])
        observed = gaps.mean()
        drawn = [(gaps * generator.choice((-1.0, 1.0), rows)).mean() for _ in range(5000)]
    else:
        observed, drawn = metric(truth, *first) - metric(truth, *second), []
        for _ in range(200):
            swap = generator.random(rows) < 0.5
            pairs = [_swapped(swap, *parts) for parts in zip(first, second, strict=True)]
            left, right = zip(*pairs, strict=True)
            drawn.append(metric(truth, *left) - metric(truth, *right))
    extreme = np.abs(drawn) >= abs(observed) - 1e-12
    return float((1 + extreme.sum()) / (1 + len(drawn)))


def _swapped(swap: Array, first: Any, second: Any) -> tuple[Any, Any]:
    if first is None or second is None:
        return None, None
    wide = swap.reshape(-1, *(1,) * (first.ndim - 1))
    return np.where(wide, second, first), np.where(wide, first, second)


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of softmax along the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _mean_ratio(predicted: Array, truth: Array) -> float:
    left, right = predicted.reshape(len(predicted), -1), truth.reshape(len(truth), -1)
    sizes, gaps = np.linalg.norm(right, axis=1), np.linalg.norm(left - right, axis=1)
    if not (sizes > 0).all():
        raise DataError(
            f"row {int((sizes == 0).argmax()) + 1} of the truth is all zero",
            where="relative error",
            fix="use mse, or leave such rows out",
        )
    return float((gaps / sizes).mean())


def _average_precision(scores: Array, wanted: Array) -> float:
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # the last row of every run of ties
    hits = np.cumsum(wanted[order])[ends]
    gained = np.diff(hits, prepend=0) / hits[-1]
    return float((gained * hits / (ends + 1)).sum())


def _scores_and_hits(scores: Any, labels: Any, where: str) -> tuple[Array, Array]:
    """Return scores [rows, labels] and whether each row has each label [rows, labels]."""
    values, wanted = _floats(scores), np.asarray(as_numpy(labels))
    if wanted.ndim == 2:
        _same_shape(values, wanted, where)
        return values, wanted.astype(bool)
    classes = _classes(wanted)
    if values.ndim == 1:
        values = values[:, None]
    elif values.shape[1] == 2:
        values = values[:, 1:] - values[:, :1]
    _paired(values, classes, where)
    if values.shape[1] == 1:
        _within(classes, 2, where)
        return values, classes[:, None] == 1
    _within(classes, values.shape[1], where)
    return values, classes[:, None] == np.arange(values.shape[1])


def as_numpy(values: Any) -> Any:
    """Return a tensor as an array, anything else as it is."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def _floats(values: Any) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()  # bfloat16 has no NumPy type
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise DataError("outputs or targets hold NaN or Inf", where="metric", fix="check the model and data")
    return array


def _classes(labels: Any) -> Array:
    array = np.asarray(as_numpy(labels))
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise DataError(
            f"labels of shape {list(array.shape)} and type {array.dtype} are no classes",
            where="metric",
            fix="give one integer per row",
        )
    return array.astype(np.int64)


def _paired(scores: Array, labels: Array, where: str) -> None:
    if scores.ndim != 2 or len(scores) != len(labels) or not len(labels):
        raise DataError(
            f"outputs of shape {list(scores.shape)} do not pair with {len(labels)} labels",
            where=where,
            fix="give outputs [rows, classes] and one label per row, at least one row",
        )


def _within(labels: Array, classes: int, where: str) -> None:
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"label {int(labels.max() if labels.max() >= classes else labels.min())} has no output among "
            f"{classes}",
            where=where,
            fix="train on data that has every class",
        )


def _same_shape(left: Array, right: Array, where: str) -> None:
    if left.shape != right.shape or not left.size:
        raise DataError(
            f"outputs of shape {list(left.shape)} do not pair with targets of shape {list(right.shape)}",
            where=where,
            fix="give equal, non-empty sets",
        )
