"""Labels with their names, ids, splits and pairs, as tables hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship import data
from transship.data.labels import encode_labels
from transship.errors import DataError


def stored(folder: Path, columns: dict[str, Any], **metadata: str) -> Path:
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, folder / "a.parquet")
    return folder / "a.parquet"


def test_names_become_places_in_their_sorted_order(tmp_path: Path):
    dataset = data.text(stored(tmp_path, {"text": list("abc"), "label": ["spam", "ham", "spam"]}))
    assert dataset.label_names == ("ham", "spam")
    assert dataset.labels.tolist() == [1, 0, 1]


@given(st.lists(st.text(st.characters(categories=["L"]), min_size=1), min_size=1), st.randoms())
def test_the_order_of_rows_does_not_change_what_a_name_stands_for(names: list[str], random: Any):
    labels, order = encode_labels(names, where="x")
    mixed = list(range(len(names)))
    random.shuffle(mixed)
    again, same = encode_labels([names[row] for row in mixed], where="x")
    assert same == order
    assert again.tolist() == labels[mixed].tolist()


def test_whole_numbers_from_zero_keep_their_value(tmp_path: Path):
    dataset = data.text(stored(tmp_path, {"text": list("ab"), "label": [3, 1]}))
    assert dataset.labels.tolist() == [3, 1]
    assert dataset.classes == 4


def test_numbers_with_a_sign_are_renumbered_and_keep_their_names():
    labels, names = encode_labels([-1, 1, 1], where="x")
    assert labels.tolist() == [0, 1, 1]
    assert names == ("-1", "1")


def test_numbers_written_as_text_are_numbers():
    assert encode_labels(["2", "0"], where="x")[0].tolist() == [2, 0]
    scores, names = encode_labels(["0.5", "3"], where="x")
    assert scores.tolist() == [0.5, 3.0]
    assert names == ()


def test_truth_values_are_two_classes():
    labels, names = encode_labels(np.array([True, False]), where="x")
    assert labels.tolist() == [1, 0]
    assert names == ("false", "true")


def test_names_come_from_the_column_beside_the_numbers(tmp_path: Path):
    columns = {"text": list("abc"), "label": [1, 0, 1], "label_name": ["wet", "dry", "wet"]}
    assert data.text(stored(tmp_path, columns)).label_names == ("dry", "wet")


def test_names_come_from_the_files_own_notes(tmp_path: Path):
    plain = stored(tmp_path, {"text": ["a"], "label": [0]}, classes='["yes", "no"]')
    assert data.text(plain).label_names == ("yes", "no")
    feature = '{"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}'
    assert data.text(stored(tmp_path, {"text": ["a"], "label": [1]}, huggingface=feature)).label_names == (
        "neg",
        "pos",
    )


def test_scores_are_targets_and_no_classes(tmp_path: Path):
    dataset = data.text(stored(tmp_path, {"text": list("ab"), "score": [1.5, 2.0]}))
    assert dataset.labels.dtype == np.float64
    assert dataset.classes == 0


def test_the_user_may_name_the_label_or_want_none(tmp_path: Path):
    path = stored(tmp_path, {"text": list("ab"), "label": [0, 1], "fine": ["x", "y"]})
    assert data.text(path, label="fine").label_names == ("x", "y")
    assert data.text(path, label=False).labels is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0, None]}, "row 2 has no value"),
        ({"label": ["x", " "]}, "row 2 has an empty label"),
        ({"label": [0.5, float("nan")]}, "row 2 is NaN or infinite"),
        ({"label": [0, 0], "label_name": ["x", "y"]}, "label 0 has the names x and y"),
        ({"label": [0, 1], "label_name": ["x", "x"]}, "the name 'x' stands for several labels"),
        ({"id": [0.5, 1.5]}, "the ids are fractions"),
        ({"id": ["x", None]}, "row 2 has no value"),
        ({"split": ["train", None]}, "row 2 has no value"),
    ],
)
def test_mislabelled_rows_are_named(tmp_path: Path, columns: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        data.text(stored(tmp_path, {"text": list("ab")} | columns))


def test_several_labels_per_row_are_refused_when_asked_for(tmp_path: Path):
    path = stored(tmp_path, {"text": ["a"], "label": [[0, 1]]})
    with pytest.raises(DataError, match="several labels"):
        data.text(path, label="label")


def test_unlabelled_rows_of_a_split_matter_only_where_that_split_is_kept(tmp_path: Path):
    columns = {"text": list("ab"), "label": [1, -1], "split": ["train", "test"]}
    path = stored(tmp_path, columns, classes='["no", "yes"]')
    assert data.text(path, split="train").labels.tolist() == [1]
    with pytest.raises(DataError, match="row 2 has label -1, outside the 2 named classes"):
        data.text(path)


def test_ids_and_splits_are_found_or_named(tmp_path: Path):
    path = stored(tmp_path, {"text": list("ab"), "doc_id": ["x", "y"], "part": ["TRAIN", "val"]})
    dataset = data.text(path, split_column="part")
    assert dataset.ids.tolist() == ["x", "y"]
    assert dataset.has_ids
    assert dataset.splits.tolist() == ["train", "validation"]
    assert data.text(path, id="part").ids.tolist() == ["TRAIN", "val"]


def test_a_column_called_set_is_a_split_only_when_it_holds_splits(tmp_path: Path):
    assert data.text(stored(tmp_path, {"text": ["a"], "set": ["train"]})).splits.tolist() == ["train"]
    assert data.text(stored(tmp_path, {"text": ["a"], "set": ["crockery"]})).splits is None


@pytest.mark.parametrize(
    "names", [("text", "text_b"), ("text_a", "text_b"), ("sentence1", "sentence2"), ("premise", "hypothesis")]
)
def test_pairs_are_found_by_their_usual_names(tmp_path: Path, names: tuple[str, str]):
    path = stored(tmp_path, {names[1]: ["second"], names[0]: ["first"], "label": [0]})
    dataset = data.text(path)
    assert dataset.kind == "pair"
    assert dataset.inputs[0] == ("first", "second")
    assert data.text(path, pair=False).inputs[0] == "first"
    assert data.text(path, names[1]).inputs[0] == "second"


def test_pairs_may_be_named(tmp_path: Path):
    path = stored(tmp_path, {"left": ["a"], "right": ["b"]})
    assert data.text(path, "left", pair="right").inputs[0] == ("a", "b")
