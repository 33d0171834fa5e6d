"""A random forest as plain arrays: fitted by scikit-learn, kept without pickle, read without scikit-learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship.numerics import chunks
from transship.types import Array

TREES = 300
_SURE = 1e-3  # the least probability of a class: a forest whose trees agree is not certain
_ROWS = 1024  # that walk down all trees at once
_TEXT = {"classification", "multilabel"}


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees one after another, each node with its own number.

    Attributes:
        roots: the first node of every tree [trees].
        left: the next node where the feature is at most the threshold, or the node itself [nodes].
        right: the next node where it is above [nodes].
        feature: which feature a node asks for [nodes].
        threshold: what it is compared with [nodes].
        value: what a leaf says [nodes, outputs]: shares of classes, shares of labels, or values.
    """

    roots: Array
    left: Array
    right: Array
    feature: Array
    threshold: Array
    value: Array

    def mean(self, features: Array) -> Array:
        """Return the mean of all trees' leaves [rows, outputs]."""
        parts = [self._walk(features[part]) for part in chunks(len(features), _ROWS)]
        return np.concatenate(parts) if parts else np.empty((0, self.value.shape[1]))

    def _walk(self, features: Array) -> Array:
        nodes = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        rows = np.arange(len(features))[:, None]
        while True:
            below = features[rows, self.feature[nodes]] <= self.threshold[nodes]
            further = np.where(below, self.left[nodes], self.right[nodes])
            if np.array_equal(further, nodes):
                return np.asarray(self.value[nodes].mean(1), np.float64)
            nodes = further

    def state(self) -> dict[str, Any]:
        """Return everything as named NumPy arrays."""
        return dict(vars(self))

    @classmethod
    def from_state(cls, arrays: Mapping[str, Array]) -> "Forest":
        """Return what `state` described."""
        return cls(**{name: np.asarray(arrays[name]) for name in cls.__dataclass_fields__})


def fit_forest(features: Array, wanted: Array, task: str, outputs: int, seed: int) -> tuple[Forest, Array]:
    """Return a forest of 300 trees, and what trees that have not seen a row say of it [rows, outputs].

    `wanted` holds classes [rows], 0/1 labels [rows, labels] or values [rows, outputs]; a class that does not
    occur has share 0.
    """
    # start-up: models that are only read need no scikit-learn
    from sklearn.ensemble import RandomForestRegressor

    if task == "classification":  # a regression of one-hot classes by squared error splits by Gini impurity
        wanted = np.eye(outputs)[wanted]
    share: Any = "sqrt" if task in _TEXT else 1 / 3
    fitted = RandomForestRegressor(
        TREES, max_features=share, bootstrap=True, oob_score=False, random_state=seed % 2**32
    ).fit(features, wanted.ravel() if outputs == 1 else wanted.reshape(-1, outputs))
    return _arrays(fitted, outputs), _unseen(fitted, features, outputs)


def linear(shares: Array, task: str) -> Array:
    """Return a forest's means as linear outputs: logarithms of shares, logits of labels, or values."""
    if task == "classification":
        return np.asarray(np.log(np.maximum(shares, _SURE)))
    if task == "multilabel":
        sure = np.clip(shares, _SURE, 1 - _SURE)
        return np.asarray(np.log(sure / (1 - sure)))
    return shares


def _arrays(fitted: Any, outputs: int) -> Forest:
    trees = [tree.tree_ for tree in fitted.estimators_]
    roots = np.cumsum([0, *(tree.node_count for tree in trees)])
    left, right, feature = [], [], []
    for first, tree in zip(roots, trees, strict=False):
        leaf, own = tree.children_left < 0, first + np.arange(tree.node_count)
        left.append(np.where(leaf, own, first + tree.children_left))
        right.append(np.where(leaf, own, first + tree.children_right))
        feature.append(np.where(leaf, 0, tree.feature))
    return Forest(
        roots[:-1].astype(np.int32),
        np.concatenate(left).astype(np.int32),
        np.concatenate(right).astype(np.int32),
        np.concatenate(feature).astype(np.int32),
        np.concatenate([tree.threshold for tree in trees]),
        np.concatenate([tree.value.reshape(-1, outputs) for tree in trees]).astype(np.float32),
    )


def _unseen(fitted: Any, features: Array, outputs: int) -> Array:
    total, count = np.zeros((len(features), outputs)), np.zeros((len(features), 1))
    for tree, drawn in zip(fitted.estimators_, fitted.estimators_samples_, strict=True):
        out = np.setdiff1d(np.arange(len(features)), drawn)
        total[out] += tree.predict(features[out]).reshape(len(out), outputs)
        count[out] += 1
    # a row that every tree has seen, which 300 trees all but rule out, gets the mean of the others
    total[count[:, 0] == 0], count[count == 0] = total.sum(0) / max(1.0, count.sum()), 1
    return np.asarray(total / count)
