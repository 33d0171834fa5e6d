"""`Dataset`: subsets, splits, draws and the fingerprint."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.data import Dataset, wrap
from transship.errors import DataError, OptionError


def numbered(rows: int = 60, classes: int = 3) -> Dataset:
    return wrap([f"text {row}" for row in range(rows)], [row % classes for row in range(rows)], kind="text")


def test_importing_the_room_imports_neither_pyarrow_nor_pil_nor_torch():
    heavy = ("pyarrow", "PIL", "torch", "sklearn")
    code = f"import sys, transship.data; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_data_set_without_rows_is_refused():
    with pytest.raises(DataError, match="mine: there are no rows"):
        wrap([], kind="text", name="mine")


def test_columns_of_another_length_are_refused():
    with pytest.raises(DataError, match="2 inputs and 3 labels"):
        wrap(["a", "b"], [0, 1, 0], kind="text")


def test_an_unknown_kind_is_refused():
    with pytest.raises(OptionError, match="'video' is no kind of data"):
        wrap(["a"], kind="video")  # type: ignore[arg-type]


@given(count=st.integers(1, 80), more=st.integers(0, 20), seed=st.integers(0, 5))
def test_draws_are_nested_and_keep_the_order_of_the_source(count: int, more: int, seed: int):
    dataset = numbered()
    small, large = dataset.take(count, seed), dataset.take(count + more, seed)
    assert len(small) == min(count, 60)
    assert set(small.ids) <= set(large.ids)
    assert list(small.ids) == sorted(small.ids)
    assert list(small.inputs) == [f"text {row}" for row in small.ids]


def test_another_seed_draws_other_rows_and_the_same_seed_the_same():
    dataset = numbered()
    assert list(dataset.take(10, 0).ids) == list(dataset.take(10, 0).ids)
    assert list(dataset.take(10, 0).ids) != list(dataset.take(10, 1).ids)


def test_per_class_takes_the_same_number_of_each():
    chosen = numbered().per_class(4, seed=3)
    assert np.bincount(chosen.labels).tolist() == [4, 4, 4]


def test_per_class_names_the_class_that_is_too_small_and_can_allow_it():
    dataset = wrap(["a", "b", "c"], ["many", "many", "few"], kind="text")
    with pytest.raises(DataError, match="class 'few' has 1 rows and 2 are asked for"):
        dataset.per_class(2)
    assert len(dataset.per_class(2, allow_fewer=True)) == 3


def test_a_draw_of_class_one_does_not_depend_on_the_other_classes():
    two = numbered(40, 2)
    alone = two.subset(two.labels == 1)
    both = two.per_class(3, seed=9)
    assert list(both.ids[both.labels == 1]) == list(alone.per_class(3, seed=9).ids)


def test_a_subset_of_a_subset_refers_to_the_first_rows():
    twice = numbered().subset([10, 20, 30]).subset([2, 0])
    assert list(twice.inputs) == ["text 30", "text 10"]
    assert list(twice.ids) == [30, 10]
    assert twice.inputs[-1] == "text 10"
    assert list(twice.inputs[:1]) == ["text 30"]
    with pytest.raises(IndexError):
        twice.inputs[2]


def test_splits_are_found_by_their_usual_names():
    dataset = wrap(list("abcd"), kind="text", splits=["train", "validation", "test", "train"])
    assert dict(dataset.split_sizes) == {"train": 2, "validation": 1, "test": 1}
    assert list(dataset.split("dev").inputs) == ["b"]
    with pytest.raises(DataError, match="there is no split 'extra'; choose one of train, validation, test"):
        dataset.split("extra")
    with pytest.raises(DataError, match="it has no splits"):
        numbered().split("train")


@given(rows=st.integers(2, 40), added=st.integers(1, 20), seed=st.integers(0, 9))
def test_rows_added_later_move_no_other_row_to_another_split(rows: int, added: int, seed: int):
    small, large = numbered(rows).with_splits(seed=seed), numbered(rows + added).with_splits(seed=seed)
    assert small.splits.tolist() == large.splits[:rows].tolist()


def test_equal_rows_without_ids_stay_in_one_split():
    dataset = wrap(["same"] * 50, kind="text").with_splits(seed=4)
    assert len(dataset.split_sizes) == 1


def test_hash_splits_have_about_the_asked_shares():
    sizes = numbered(3000).with_splits({"train": 0.7, "validation": 0.1, "test": 0.2}).split_sizes
    assert sizes["train"] == pytest.approx(2100, abs=110)
    assert sizes["validation"] == pytest.approx(300, abs=70)


def test_stratified_splits_cut_every_class_exactly():
    dataset = wrap([str(row) for row in range(90)], [0] * 60 + [1] * 30, kind="text")
    drawn = dataset.with_splits({"train": 0.5, "test": 0.5}, stratified=True, seed=2)
    assert np.bincount(drawn.split("test").labels).tolist() == [30, 15]


@pytest.mark.parametrize("shares", [{"train": 0.5, "test": 0.4}, {"train": 1.2, "test": -0.2}])
def test_shares_that_do_not_add_up_are_refused(shares: dict[str, float]):
    with pytest.raises(OptionError, match="add up to 1"):
        numbered().with_splits(shares)


def test_batches_cover_all_rows_in_order():
    dataset = numbered(7)
    assert [len(batch) for batch in dataset.batches(3)] == [3, 3, 1]
    assert [text for batch in dataset.batches(3) for text in batch] == list(dataset.inputs)
    array = wrap(np.arange(14.0).reshape(7, 2), kind="vector")
    assert [batch.shape for batch in array.batches(4)] == [(4, 2), (3, 2)]
    pairs = list(dataset.labelled_batches(5))
    assert pairs[1][0] == ["text 5", "text 6"]
    assert pairs[1][1].tolist() == [2, 0]


def test_work_that_needs_classes_says_what_is_there_in_their_place():
    with pytest.raises(DataError, match="no labels, which a draw per class needs"):
        wrap(["a"], kind="text").per_class(1)
    with pytest.raises(DataError, match="numeric targets and no classes"):
        wrap(["a"], [0.5], kind="text").per_class(1)


def test_the_fingerprint_depends_on_content_and_on_nothing_else():
    base = wrap(["a", "b"], ["x", "y"], kind="text", name="one")
    assert base.fingerprint() == wrap(["a", "b"], ["x", "y"], kind="text", name="two").fingerprint()
    others = [
        wrap(["a", "c"], ["x", "y"], kind="text"),
        wrap(["ab", ""], ["x", "y"], kind="text"),
        wrap(["a", "b"], ["x", "z"], kind="text"),
        wrap(["a", "b"], ["y", "x"], kind="text"),
        wrap(["a", "b"], kind="text"),
        wrap(["a", "b"], ["x", "y"], kind="text", ids=[7, 8]),
        wrap(["a", "b"], ["x", "y"], kind="text", splits=["train", "test"]),
        wrap([("a", "b"), ("b", "a")], ["x", "y"], kind="pair"),
    ]
    prints = {dataset.fingerprint() for dataset in others}
    assert len(prints | {base.fingerprint()}) == len(others) + 1


def test_a_subset_has_the_fingerprint_of_the_same_rows_given_alone():
    whole = wrap(["a", "b", "c"], [0, 1, 1], kind="text", ids=["i", "j", "k"])
    alone = wrap(["a", "c"], [0, 1], kind="text", ids=["i", "k"])
    assert whole.subset([0, 2]).fingerprint() == alone.fingerprint()
    array = wrap(np.arange(6.0).reshape(3, 2), kind="vector")
    assert array.subset([1]).fingerprint() == wrap(np.array([[2.0, 3.0]]), kind="vector").fingerprint()


def test_the_fingerprint_of_a_known_data_set_never_changes():
    # caches are keyed by it: a change here must be meant
    known = wrap(["a", "ß"], [0, 1], kind="text", ids=["x", "y"])
    assert known.fingerprint() == "e18d5bb30c975a66ed78bf722d025b2556d191b606fc33c347fd876251400165"
