"""Inputs and targets: scaled as the training rows say, refused in one sentence before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transship.errors import DataError
from transship.verbs.adapt.rows.inputs import Inputs
from transship.verbs.adapt.rows.targets import Targets

GENERATOR = np.random.default_rng(0)


def test_channels_of_different_scale_come_to_one():
    rows = GENERATOR.normal(size=(50, 2, 20)) * np.array([1.0, 1e6])[:, None] + np.array([5.0, -3e6])[:, None]
    vectors = Inputs.fit(rows).transform(rows)
    np.testing.assert_allclose(vectors.mean((0, 2)), 0.0, atol=1e-4)
    np.testing.assert_allclose(vectors.std((0, 2)), 1.0, atol=1e-4)


def test_tabular_columns_have_scales_of_their_own():
    rows = GENERATOR.normal(size=(50, 4)) * np.array([1.0, 10.0, 100.0, 0.0])
    vectors = Inputs.fit(rows, kind="tabular").transform(rows)
    assert vectors.shape == (50, 1, 4)
    np.testing.assert_allclose(vectors.std(0)[0], [1.0, 1.0, 1.0, 0.0], atol=1e-5)


def test_missing_values_are_refused_by_row_or_filled_with_the_channels_mean():
    rows = GENERATOR.normal(size=(5, 8)).astype(np.float32)
    rows[2, 3] = np.nan
    with pytest.raises(DataError, match=r"row 3 holds NaN or infinity \(1 such rows\); .*--missing fill"):
        Inputs.fit(rows)
    vectors = Inputs.fit(rows, missing="fill").transform(rows)
    assert vectors[2, 0, 3] == 0.0


def test_token_ids_become_one_hot_channels_and_strange_ones_are_refused():
    ids = np.array([[0, 1, 2], [2, 2, 0]])
    inputs = Inputs.fit(ids, kind="tokens")
    vectors = inputs.transform(ids)
    assert vectors.shape == (2, 3, 3)
    np.testing.assert_array_equal(vectors.argmax(1), ids)
    with pytest.raises(DataError, match="token 7 did not occur in training"):
        inputs.transform(np.array([[0, 1, 7]]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.empty((0, 5)), "there are no inputs"),
        (np.ones((4, 1)), "every input has one value only"),
        (np.ones((4, 9)), "all inputs are the same constant"),
        (np.full((4, 9), np.inf), "row 1 holds NaN or infinity"),
        (np.array([["a", "b"], ["c", "d"]]), "inputs hold <U1 and no numbers"),
        ([[1.0, 2.0], [3.0]], "inputs are ragged or hold no numbers"),
        (np.zeros((2, 2, 2, 2, 2)), "inputs of shape"),
    ],
)
def test_hostile_inputs_are_one_sentence(rows: Any, message: str):
    with pytest.raises(DataError, match=message):
        Inputs.fit(rows)


def test_inputs_of_another_shape_than_in_training_are_refused():
    inputs = Inputs.fit(GENERATOR.normal(size=(4, 2, 9)))
    with pytest.raises(DataError, match="inputs are 2 × 8 and the model was trained on 2 × 9"):
        inputs.transform(GENERATOR.normal(size=(4, 2, 8)))


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (np.array(["b", "a", "b", "a"]), "classification"),
        (np.array([3, 7, 3, 7]), "classification"),
        (np.array([0.5, 1.5, 2.25, 3.0]), "regression"),
        (np.array([[0, 1], [1, 0], [1, 1], [0, 0]]), "multilabel"),
        (GENERATOR.normal(size=(4, 12)), "dense"),
    ],
)
def test_auto_reads_the_task_off_the_targets_and_predictions_come_back_in_their_values(
    values: Any, task: str
):
    targets = Targets.fit(values)
    assert targets.task == task
    encoded = targets.encode(values)
    if task == "classification":
        back = targets.decode(np.eye(len(targets.classes))[encoded])
    elif task == "multilabel":
        back = targets.decode(encoded - 0.5)
    else:
        back = targets.decode(encoded)
    assert back.shape == values.shape
    if task in ("classification", "multilabel"):
        np.testing.assert_array_equal(back, values)
    else:
        np.testing.assert_allclose(back, values, atol=1e-5)


def test_channels_of_dense_targets_go_by_the_inputs_axes():
    fields = GENERATOR.normal(size=(6, 3, 8))
    as_signals, as_fields = (
        Targets.fit(fields, task="dense", plane=1),
        Targets.fit(fields, task="dense", plane=2),
    )
    assert (as_signals.outputs, as_signals.size) == (3, (8,))
    assert (as_fields.outputs, as_fields.size) == (1, (3, 8))
    assert as_signals.encode(fields).shape == (6, 3, 8)
    assert as_fields.encode(fields).shape == (6, 1, 3, 8)


def test_codes_of_numeric_targets_are_seeded_clusters_that_follow_the_targets():
    values = np.repeat(np.arange(10.0), 20) + GENERATOR.normal(0, 0.01, 200)
    targets = Targets.fit(values, task="regression", seed=3)
    codes = targets.label_codes(values)
    assert len(np.unique(codes)) == 10
    for level in range(10):
        assert len(np.unique(codes[20 * level : 20 * level + 20])) == 1
    np.testing.assert_array_equal(codes, Targets.fit(values, task="regression", seed=3).label_codes(values))
    wide = Targets.fit(GENERATOR.normal(size=(50, 300)), task="dense")
    assert wide.codes["centres"].shape == (10, 16)


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (np.zeros(9, int), "classification", "all 9 targets are 0, and one class leaves nothing to learn"),
        (np.array(["a", "b"]), "regression", "regression needs numbers and the targets are text such as 'a'"),
        (np.array([1.0, np.nan]), "auto", "target 2 is NaN or infinite"),
        (np.array([]), "auto", "there are no targets"),
        (np.ones(4), "regression", "all targets are the same number"),
        (np.ones((4, 2)), "classification", "are no classes"),
        (np.ones((4, 2)) * 2, "multilabel", "multi-label targets are not 0 and 1"),
        (np.arange(60), "classification", "60 rows have 60 different targets, too many for classes"),
        (np.ones(4), "dense", "all targets are the same number"),
        (np.arange(4.0), "dense", "do not fit inputs of 1 axes"),
    ],
)
def test_hostile_targets_are_one_sentence(values: Any, task: str, message: str):
    with pytest.raises(DataError, match=message):
        Targets.fit(values, task=task)


def test_a_class_that_training_did_not_have_is_named():
    targets = Targets.fit(np.array(["a", "b", "a"]))
    with pytest.raises(DataError, match="class c does not occur in training"):
        targets.encode(np.array(["a", "c"]))
    numbers = Targets.fit(np.array([0, 1, 0]))
    with pytest.raises(DataError, match="class 2 does not occur in training"):
        numbers.encode(np.array([0, 2]))
