"""`load` and `wrap`: the kind is found, memory is checked as files are, real files hold what they should."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from transship import data
from transship.errors import DataError, OptionError

# name → (kind, rows, classes), as the notes that come with the data say
QUICK = {
    "sms_spam": ("text", 5574, 2),
    "trec_questions": ("text", 5952, 6),
    "sst2": ("text", 9613, 2),
    "ag_news": ("text", 7600, 4),
    "banking77": ("text", 13083, 77),
    "clinc150": ("text", 23700, 151),
    "sick_nli_sts": ("pair", 9927, 3),
    "stsb_open": ("pair", 4249, 0),
    "gtsrb_32": ("image", 5805, 43),
    "usps_test": ("image", 2007, 10),
    "ir_scifact-corpus": ("text", 5183, 0),
    "ir_scifact-queries": ("text", 1109, 0),
    "ir_cranfield-corpus": ("text", 1398, 0),
    "ir_cisi-corpus": ("text", 1460, 0),
    "ir_npl-corpus": ("text", 11429, 0),
    "ir_dbpedia-corpus": ("text", 5000, 0),
    "wordnet_supersense": ("text", 33774, 24),
    "ucr_CricketX": ("series", 780, 12),
    "ucr_CricketY": ("series", 780, 12),
    "ucr_CricketZ": ("series", 780, 12),
    "ucr_Crop": ("series", 24000, 24),
    "ucr_ECG5000": ("series", 5000, 5),
    "ucr_ElectricDevices": ("series", 16637, 7),
    "ucr_FaceAll": ("series", 2250, 14),
    "ucr_FordA": ("series", 4921, 2),
    "ucr_FordB": ("series", 4446, 2),
}
LARGE = {
    "mnist": ("image", 70000, 10, None),
    "fashion_mnist": ("image", 70000, 10, None),
    "wordnet_glosses": ("text", 117659, 45, "supersense"),
}
FIELDS = {
    "pde_darcy_train_16": (1000, 16, 16),
    "pde_darcy_test_16": (50, 16, 16),
    "pde_darcy_test_32": (50, 32, 32),
}


@pytest.mark.parametrize("name", QUICK)
def test_a_real_data_set_opens_with_its_rows(data_dir: Path, name: str):
    kind, rows, classes = QUICK[name]
    dataset = data.load(name)
    assert (dataset.kind, len(dataset), dataset.classes) == (kind, rows, classes)
    assert dataset.labels is None or len(np.unique(dataset.labels)) == classes or not classes
    first = dataset.inputs[0]
    assert first.size[0] in (16, 32) if kind == "image" else len(first) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_real_data_set_opens_with_its_rows(data_dir: Path, name: str):
    kind, rows, classes, label = LARGE[name]
    dataset = data.load(name, label=label)
    assert (dataset.kind, len(dataset), dataset.classes) == (kind, rows, classes)
    again = data.load(data_dir / f"{name}.parquet", label=label)
    assert dataset.take(500).fingerprint() == again.take(500).fingerprint()
    if kind == "image":
        assert {image.size for image in dataset.take(200).inputs} == {(28, 28)}


@pytest.mark.parametrize("name", FIELDS)
def test_a_real_field_opens_with_its_target(data_dir: Path, name: str):
    dataset = data.load(name)
    assert dataset.inputs.shape == dataset.labels.shape == FIELDS[name]


def test_burgers_equation_opens_with_its_target(data_dir: Path):
    dataset = data.load("pde_burgers_lowres")
    assert dataset.inputs.shape == (1200, 16)
    assert dataset.labels.shape == (1200, 17, 16)


def test_judgements_are_no_inputs(data_dir: Path):
    with pytest.raises(DataError, match="no column reads as text"):
        data.text("ir_cisi-qrels")


def test_the_scores_of_pairs_can_be_asked_for(data_dir: Path):
    dataset = data.text("sick_nli_sts", label="score", split="test")
    assert len(dataset) == 4927
    assert 1 <= dataset.labels.min() <= dataset.labels.max() <= 5


def test_a_data_set_passes_through():
    dataset = data.wrap(["a", "b"], kind="text", splits=["train", "test"])
    assert data.load(dataset) is dataset
    assert list(data.load(dataset, split="test").inputs) == ["b"]


def test_an_unknown_kind_is_an_option_that_does_not_fit(tmp_path: Path):
    with pytest.raises(OptionError, match="'sound' is no kind of data"):
        data.load(tmp_path, "sound")  # type: ignore[arg-type]


def test_memory_is_checked_as_files_are():
    with pytest.raises(DataError, match="row 2 is no text; give a string for every row"):
        data.wrap(["a", None], kind="text")
    with pytest.raises(DataError, match="row 1 is no pair; give two strings"):
        data.wrap(["ab"], kind="pair")
    with pytest.raises(DataError, match="row 2 holds NaN or infinity"):
        data.wrap(np.array([[1.0], [np.nan]]), kind="vector")
    with pytest.raises(DataError, match="row 2 has no label"):
        data.wrap(["a", "b"], ["x", None], kind="text")


def test_opening_a_name_twice_gives_the_same_fingerprint(tmp_path: Path):
    (tmp_path / "a.csv").write_text("text,label\nx,1\ny,0\n")
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": 1}\n{"text": "y", "label": 0}\n')
    assert data.load(tmp_path / "a.csv").fingerprint() == data.load(tmp_path / "a.jsonl").fingerprint()


def waves(path: Path, *, separator: str, header: str = "", label: str = "{}") -> Path:
    """Write five series of 12 values with their label first, as the UCR archive has them."""
    rows = np.sin(np.outer(1 + np.arange(5), np.arange(12))).round(4)
    lines = [
        separator.join([label.format(row % 2 + 1), *map(str, values)]) for row, values in enumerate(rows)
    ]
    path.write_text("\n".join([*([header] if header else []), *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a_TRAIN.tsv", {"separator": "\t"}, "column 1 is read as the label, columns 2 to 13 as a series"),
        ("a.csv", {"separator": ",", "label": "{}.0000000e+00"}, "column 1 is read as the label"),
        (
            "wide.csv",
            {"separator": ",", "header": "label," + ",".join(f"t{n}" for n in range(1, 13))},
            "the columns t1 to t12 are read as a series",
        ),
    ],
)
def test_wide_tables_of_numbers_are_series_and_the_guess_is_said(
    name: str, options: dict[str, str], said: str, tmp_path: Path, caplog
):
    rows = data.load(waves(tmp_path / name, **options))
    assert rows.kind == "series"
    assert np.asarray(rows.inputs).shape == (5, 12)
    np.testing.assert_allclose(np.asarray(rows.inputs)[1], np.sin(2 * np.arange(12)), atol=1e-4)
    assert [rows.label_names[label] for label in rows.labels] == ["1", "2", "1", "2", "1"]
    assert said in caplog.text
    assert len(caplog.records) == 1, "one guess, one note"


def test_a_folder_of_the_ucr_archive_has_its_splits(tmp_path: Path):
    for part in ("TRAIN", "TEST"):
        waves(tmp_path / f"Wave_{part}.tsv", separator="\t")
    assert data.load(tmp_path).split_sizes == {"train": 5, "test": 5}


def test_numbers_alone_are_a_series_and_a_header_of_numbers_is_a_header(tmp_path: Path):
    (tmp_path / "plain.csv").write_text("0.5,1.5,2.5\n1.5,2.5,3.5\n")
    rows = data.load(tmp_path / "plain.csv")
    assert (rows.kind, np.asarray(rows.inputs).shape, rows.labels) == ("series", (2, 3), None)
    (tmp_path / "pandas.csv").write_text("0,1,2\n1.5,2.5,3.5\n")
    assert np.asarray(data.load(tmp_path / "pandas.csv").inputs).tolist() == [[1.5, 2.5, 3.5]]


def test_several_text_columns_are_joined(tmp_path: Path):
    rows = [
        {"title": "Ships", "text": "They sail."},
        {"title": "", "text": "Birds fly."},
        {"title": "End", "text": None},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list(data.text(tmp_path / "a.jsonl", column="title,text").inputs) == [
        "Ships They sail.",
        "Birds fly.",
        "End",
    ]
    with pytest.raises(DataError, match="there is no column 'body'"):
        data.text(tmp_path / "a.jsonl", column="title,body")
