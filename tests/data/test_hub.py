"""The `datasets` library's own objects become our tables."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from transship import data
from transship.data.labels import Options
from transship.data.loading import guess_kind, text_of_table
from transship.data.locate import hub_table, table_of_splits
from transship.data.pictures import images_of_table
from transship.errors import MissingError

datasets = pytest.importorskip("datasets", reason="the extra `hub` is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def text_splits() -> dict[str, object]:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    rows = {"text": ["good", "bad", "fine"], "label": [1, 0, 1]}
    train = datasets.Dataset.from_dict(rows, features=features)
    test = datasets.Dataset.from_dict({"text": ["unknown"], "label": [-1]}, features=features)
    return {"train": train.select([2, 0, 1]), "test": test}


def test_splits_and_class_names_are_carried_over():
    table = table_of_splits("some/set", text_splits())
    assert guess_kind(table, Options()) == "text"
    dataset = text_of_table(table, Options(split="train"), "some/set")
    assert list(dataset.inputs) == ["fine", "good", "bad"]
    assert dataset.label_names == ("neg", "pos")
    assert dataset.labels.tolist() == [1, 1, 0]


def test_images_are_carried_over():
    pixels = np.full((3, 3, 3), 200, np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])})
    train = datasets.Dataset.from_dict({"image": [pixels], "label": [0]}, features=features)
    table = table_of_splits("some/pictures", {"train": train})
    assert guess_kind(table, Options()) == "image"
    image = images_of_table(table, Options(), "some/pictures", "RGB").inputs[0]
    np.testing.assert_array_equal(np.asarray(image), pixels)


def test_the_library_loads_a_repository_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder in the working place stands in for the repository `owner/name`; the call is the real one."""
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text("text,label\na,0\nb,1\n")
    (folder / "test.csv").write_text("text,label\nc,1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    table = hub_table("owner/name")
    dataset = text_of_table(table, Options(), "owner/name")
    assert dict(dataset.split_sizes) == {"train": 2, "test": 1}


def test_a_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingError, match=r"`datasets` is not installed; pip install 'transship\[hub\]'"):
        data.load("owner/name")
