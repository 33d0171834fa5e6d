"""FASTA files as tables."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship import data
from transship.data.fasta import FASTA, fasta_columns
from transship.errors import DataError

TEXT = ">s1 label=donor split=train\nacgt\nAC\n\n; a remark\n>s2 label=none split=test\r\nMKV*\n"


@pytest.mark.parametrize("suffix", FASTA)
def test_sequences_come_with_their_names_labels_and_splits(tmp_path: Path, suffix: str):
    file = tmp_path / f"rows{suffix}"
    file.write_text(TEXT)
    read = data.load(file)
    assert list(read.inputs) == ["ACGTAC", "MKV"]
    assert [read.label_names[code] for code in read.labels] == ["donor", "none"]
    assert read.ids.tolist() == ["s1", "s2"]
    assert read.splits.tolist() == ["train", "test"]


def test_a_fact_that_some_headers_lack_is_no_column():
    assert set(fasta_columns(">a x=1\nAC\n>b\nAC\n", "f")) == {"id", "header", "sequence"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACGT\n>a\nAC\n", "line 1 is a sequence without a header"),
        (">a\nAC\n>b c\n", "'>b c' has no sequence"),
    ],
)
def test_what_is_no_fasta_is_one_sentence(tmp_path: Path, text: str, message: str):
    (tmp_path / "rows.fasta").write_text(text)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path / "rows.fasta")


@given(st.lists(st.text("ACGT", min_size=1, max_size=200), min_size=1, max_size=5), st.integers(1, 60))
def test_sequences_come_back_however_their_lines_are_cut(sequences: list[str], width: int):
    text = "".join(
        f">s{number}\n" + "".join(f"{body[at : at + width]}\n" for at in range(0, len(body), width))
        for number, body in enumerate(sequences)
    )
    assert fasta_columns(text, "f")["sequence"] == sequences
