"""Who is fitted, chosen by and measured on, and which label is which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.data import Dataset, wrap
from transship.data.use import (
    held_out,
    match_labels,
    rows_to_choose,
    rows_to_fit,
    rows_to_measure,
    unused_rows,
)
from transship.errors import DataError


def texts(*splits: str) -> Dataset:
    rows = [f"row {number}" for number in range(len(splits))]
    return wrap(rows, kind="text", labels=[number % 2 for number in range(len(splits))], splits=list(splits))


def test_splits_say_what_rows_are_for():
    data = texts("train", "test", "validation", "train")
    assert list(rows_to_fit(data).inputs) == ["row 0", "row 3"]
    assert list(rows_to_choose(data).inputs) == ["row 2"]
    assert list(rows_to_measure(data).inputs) == ["row 1"]


def test_data_without_a_test_split_is_measured_on_validation_rows():
    assert list(rows_to_measure(texts("train", "validation")).inputs) == ["row 1"]
    assert rows_to_measure(texts("train", "train")) is None


def test_without_splits_all_rows_are_fitted_on():
    data = wrap(["a", "b"], kind="text")
    assert list(rows_to_fit(data).inputs) == ["a", "b"]
    assert rows_to_choose(data) is None
    assert rows_to_measure(data) is None


def test_rows_of_other_splits_stand_for_training_rows_and_test_rows_never_do():
    assert list(rows_to_fit(texts("extra", "test", "validation")).inputs) == ["row 0"]
    assert list(rows_to_fit(texts("validation", "test"), validation=True).inputs) == ["row 0"]
    for held_back in (texts("validation", "test"), texts("test", "test")):
        with pytest.raises(DataError, match="nothing is fitted on those"):
            rows_to_fit(held_back)


def test_rows_are_unused_by_their_content():
    data = wrap(["a", "b", "c", "b"], kind="text")
    assert unused_rows(data, [["b"], ["z"]]).tolist() == [0, 2]


@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=5), seed=st.integers(0, 9))
def test_every_class_is_learnt_from_and_large_ones_are_chosen_by(counts: list[int], seed: int):
    targets = np.repeat(np.arange(len(counts)), counts)
    chosen = held_out(targets, 0.2, seed)
    taken = np.bincount(targets[chosen], minlength=len(counts))
    if any(count > 1 for count in counts):
        assert all(
            taken[number] == min(count - 1, max(1, round(0.2 * count))) for number, count in enumerate(counts)
        )
    assert len(set(chosen.tolist())) == len(chosen)


def test_numbers_are_drawn_without_classes():
    values = np.linspace(0, 1, 100)
    assert len(held_out(values, 0.25, 0)) == 25
    assert held_out(values, 0.25, 0).tolist() != held_out(values, 0.25, 1).tolist()


def test_classes_meet_by_name_in_any_order_and_spelling():
    places = match_labels(["Very Good", "bad"], ["bad", "so-so", "very_good"], "the head")
    assert places.tolist() == [2, 0]


def test_classes_without_names_meet_by_number():
    assert match_labels(["bad", "good"], ["LABEL_0", "LABEL_1"], "the head").tolist() == [0, 1]
    assert match_labels(["0", "1"], ["bad", "good", "best"], "the head", partly=True).tolist() == [0, 1]
    five = ["ant", "bee", "cow", "dog", "eel"]
    assert match_labels(["1", "2", "4"], five, "the head", partly=True).tolist() == [1, 2, 4]
    assert match_labels(["LABEL_3", "LABEL_4"], five, "the head", partly=True).tolist() == [3, 4]
    assert match_labels(["4", "5"], five, "the head", partly=True).tolist() == [0, 1]


def test_other_classes_are_refused_with_the_reason():
    assert match_labels(["bad", "whale"], ["bad", "good"], "the head") == "the head has no class 'whale'"
    reason = match_labels(["0", "1"], ["LABEL_0"], "the head", partly=True)
    assert reason == "the data has 2 classes and the head 1"
