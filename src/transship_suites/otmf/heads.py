"""Heads on merged features: the kinds that `merge` fits, and the best that labels can train beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from transship.verbs.merge.tasks.heads import HeadSettings, LinearHead, carry, polish, tune
from transship_suites.otmf.names import CARRIED, LABEL_HEADS, POLISHED, TUNED


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a task's own inputs.

    Attributes:
        inputs: a quarter of the training inputs.
        labels: their classes, which only heads tuned on labels may read.
        logits: of the task's own model, which carried heads read.
        classes: how many classes there are.
        features: of the task's own model, for the shift against them.
    """

    inputs: Tensor
    labels: Tensor
    logits: Tensor
    classes: int
    features: Tensor | None = None


def fitted(kind: str, features: Tensor, known: Known, own: LinearHead) -> LinearHead:
    """Return a head of this kind for merged features of the known inputs."""
    if kind not in (TUNED, CARRIED, POLISHED):
        raise ValueError(f"'{kind}' is no kind of head that is fitted")
    # features of several blocks have no own head to shrink to
    settings = HeadSettings(prior="own" if features.shape[1] == own.weight.shape[1] else "zero")
    if kind == TUNED:
        return tune(own, features, known.labels, settings)
    carried = carry(features, known.logits, own, settings)
    return carried if kind == CARRIED else polished(carried, features, known)


def polished(carried: LinearHead, features: Tensor, known: Known) -> LinearHead:
    """Return a carried head after its steps against the probabilities of the task's own model."""
    return polish(carried, features, known.logits, HeadSettings())


def label_heads(features: Tensor, known: Known, own: LinearHead) -> dict[str, LinearHead]:
    """Return heads trained on labels in seven ways: what a carried head must be held against.

    Adam from the task's own head, fast (the paper's: 100 steps of 0.01), slow (1000 of 0.001) and long (1000
    of 0.01); ridge on one-hot rows and logistic regression at two penalties each.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    steps_and_rates = ((100, 0.01), (1000, 0.001), (1000, 0.01))
    found = [
        tune(own, features, known.labels, HeadSettings(tuning_steps=steps, tuning_rate=rate))
        for steps, rate in steps_and_rates
    ]
    rows, labels = features.double().numpy(), known.labels.numpy()
    unit = float(features.double().var(0).sum()) / features.shape[1] * len(rows)
    wanted = one_hot(known.labels, known.classes).double().numpy()
    for strength in (1e-3, 1e-1):
        flat = Ridge(alpha=strength * unit).fit(rows, wanted)
        found.append(_head(flat.coef_, flat.intercept_))
    for penalty in (1.0, 0.03):
        regression = LogisticRegression(C=penalty, max_iter=300).fit(rows, labels)
        found.append(_spread(regression, known.classes))
    return dict(zip(LABEL_HEADS, found, strict=True))


def _spread(regression: Any, classes: int) -> LinearHead:
    """Return a logistic regression as a head over all classes; one that it never saw cannot win."""
    weight, bias = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2 and len(weight) == 1:  # scikit-learn keeps one row of two classes
        weight, bias = torch.tensor(weight), torch.tensor(bias)
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    seen = _head(weight, bias)
    places = torch.from_numpy(regression.classes_)
    weight = torch.zeros(classes, seen.weight.shape[1]).index_copy(0, places, seen.weight)
    assert seen.bias is not None
    bias = torch.full((classes,), -1e9).index_copy(0, places, seen.bias)
    return LinearHead(weight, bias)


def _head(weight: Any, bias: Any) -> LinearHead:
    return LinearHead(torch.as_tensor(weight).float(), torch.as_tensor(bias).float())
