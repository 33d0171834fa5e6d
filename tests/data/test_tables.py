"""Files that become tables, and files that do not: one sentence each."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transship import data
from transship.data.rows import ParquetRows
from transship.data.tables import open_table
from transship.errors import DataError, TransshipError
from transship.outside import unpacking_at_most


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


FORMS = {
    "rows.txt": "one\ntwo, three\n\nfour\r\n",
    "rows.jsonl": '{"text": "one"}\n{"text": "two, three"}\n\n{"text": "four"}\n',
    "rows.json": '[{"text": "one"}, {"text": "two, three"}, {"text": "four"}]',
    "rows.csv": 'text\none\n"two, three"\nfour\n',
    "rows.tsv": "text\tn\none\t1\ntwo, three\t2\nfour\t3\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_texts(tmp_path: Path, name: str):
    assert list(data.text(written(tmp_path, name, FORMS[name])).inputs) == ["one", "two, three", "four"]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path):
    path = written(tmp_path, "a.csv", b"\xef\xbb\xbftext,label\nhello,1\n")
    assert data.text(path).inputs[0] == "hello"


def test_only_line_feeds_end_a_line_of_text(tmp_path: Path):
    path = written(tmp_path, "a.txt", "one\x0cstill one\u2028still one\x85end\ntwo")
    assert list(data.text(path).inputs) == ["one\x0cstill one\u2028still one\x85end", "two"]


def test_quoted_csv_fields_may_hold_separators_quotes_and_line_ends(tmp_path: Path):
    path = written(tmp_path, "a.csv", 'text,label\n"a ""b"", c\nd",x\nplain,y\n')
    assert list(data.text(path).inputs) == ['a "b", c\nd', "plain"]


def test_tsv_keeps_stray_quotes_and_undoes_written_ones(tmp_path: Path):
    path = written(tmp_path, "a.tsv", 'text\tlabel\n"stray quote\tx\n"said ""so"""\ty\n5" disk\tx\n')
    assert list(data.text(path).inputs) == ['"stray quote', 'said "so"', '5" disk']


MISTAKES = {
    "empty.txt": ("", "the file is empty"),
    "blank.txt": ("\n \n", "the file is empty"),
    "empty.jsonl": ("", "the file is empty"),
    "empty.parquet": (b"", "the file is empty"),
    "header.csv": ("text,label\n", "the file has no rows"),
    "latin.txt": (b"fine\ncaf\xe9\n", r"byte 0xe9 at offset 8 \(line 2\) is not UTF-8"),
    "latin.csv": (b"\xef\xbb\xbftext\ncaf\xe9\n", r"byte 0xe9 at offset 11 \(line 2\) is not UTF-8"),
    "short.csv": ("text,label\na,1\nb\n", "line 3 has 1 fields and the header has 2"),
    "long.csv": ('text,label\n"a\nb",1\nc,d,2\n', "line 4 has 3 fields and the header has 2"),
    "quote.csv": ('text,label\n"a,1\n', r"line 2 is no valid csv \(unexpected end of data\)"),
    "short.tsv": ("text\tlabel\na\n", "line 2 has 1 fields and the header has 2"),
    "twice.csv": ("text,text\na,b\n", "the column 'text' occurs twice"),
    "bad.jsonl": ('{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
    "list.jsonl": ('{"text": "a"}\n["b"]\n', "line 2 holds a list and no object"),
    "deep.jsonl": ("[" * 100_000, "line 1 is not JSON"),
    "object.json": ('{"text": "a"}', "no list of objects"),
    "gap.jsonl": ('{"text": "a"}\n{"other": 1}\n', r"row 2 has no text \(1 such rows\)"),
    "null.jsonl": ('{"text": "a"}\n{"text": null}\n', "row 2 has no text"),
    "number.jsonl": ('{"text": 1}\n{"text": 2}\n', "holds int64 and no text"),
    "mixed.jsonl": ('{"text": "a"}\n{"text": 2}\n', "the column 'text' mixes int and str"),
    "other.csv": ("words,label\na,1\n", r"no column reads as text \(the columns are words, label\)"),
    "near.csv": ("txt,label\na,1\n", r"did you mean 'txt'\? Name it with --column"),
    "broken.parquet": (b"PAR1 and then nonsense PAR1", "no readable parquet file"),
    "notes.docx": ("x", "'.docx' is no table that can be read"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_file_that_cannot_be_read_gives_one_sentence(tmp_path: Path, name: str):
    content, message = MISTAKES[name]
    path = written(tmp_path, name, content)
    with pytest.raises(DataError, match=message) as caught:
        data.text(path)
    assert name in caught.value.where
    assert "\n" not in str(caught.value)


def test_a_column_that_the_user_names_wrongly_is_corrected(tmp_path: Path):
    path = written(tmp_path, "a.csv", "review_text,label\na,1\n")
    with pytest.raises(DataError, match=r"no column 'review_txt' .* did you mean 'review_text'\?"):
        data.text(path, "review_txt")
    with pytest.raises(DataError, match=r"no column 'labels' .* did you mean 'label'\?"):
        data.text(path, "review_text", label="labels")


@example(b"\xef\xbb\xbf", "csv")  # nothing but a byte-order mark
@given(
    st.binary(max_size=200), st.sampled_from(["csv", "tsv", "jsonl", "json", "txt", "parquet", "npy", "npz"])
)
def test_no_bytes_give_anything_but_data_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, form: str
):
    path = written(tmp_path_factory.mktemp("raw"), f"a.{form}", raw)
    try:
        name = data.load(path).name
    except TransshipError as error:
        name = error.where
    assert str(path) in name


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=9)), min_size=1, max_size=8))
def test_json_lines_carry_any_text(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]):
    rows = [tuple(part.encode("utf-8", "replace").decode() for part in row) for row in rows]
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_text(
        "\n".join(json.dumps({"sentence1": a, "sentence2": b}) for a, b in rows), encoding="utf-8"
    )
    assert list(data.text(path).inputs) == rows


def test_parquet_is_read_by_column_and_images_by_row_group(tmp_path: Path):
    table = pa.table({"image": [bytes([row]) * 10 for row in range(100)], "label": list(range(100))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    rows = open_table([tmp_path / "a.parquet"]).rows_of("image")
    assert isinstance(rows, ParquetRows)
    assert [rows[row] for row in (99, 0, 55)] == [bytes([row]) * 10 for row in (99, 0, 55)]
    assert list(rows._cache) == [0, 5]  # at most two of the ten groups stay in memory


def test_files_of_several_splits_are_one_table(tmp_path: Path):
    for split, rows in (("train", 3), ("dev", 2), ("test", 1)):
        pq.write_table(
            pa.table({"text": [f"{split} {row}" for row in range(rows)]}), tmp_path / f"set-{split}.parquet"
        )
    dataset = data.load(tmp_path / "set")
    assert dict(dataset.split_sizes) == {"train": 3, "validation": 2, "test": 1}
    assert list(dataset.split("validation").inputs) == ["dev 0", "dev 1"]
    assert dict(data.load(tmp_path).split_sizes) == {"train": 3, "validation": 2, "test": 1}


def test_text_files_of_several_splits_are_one_table_too(tmp_path: Path):
    written(tmp_path, "set-train.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    written(tmp_path, "set-test.jsonl", '{"text": "c", "label": "x"}\n')
    dataset = data.load(tmp_path / "set")
    assert list(dataset.split("test").inputs) == ["c"]
    assert dataset.label_names == ("x", "y")


def test_files_of_different_tables_are_refused(tmp_path: Path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "set-train.parquet")
    pq.write_table(pa.table({"words": ["a"]}), tmp_path / "set-test.parquet")
    with pytest.raises(DataError, match="its columns differ"):
        data.load(tmp_path / "set")


def test_unreadable_notes_in_a_parquet_file_are_passed_over(tmp_path: Path):
    table = pa.table({"text": ["a"], "label": [3]}).replace_schema_metadata({"classes": "not json"})
    pq.write_table(table, tmp_path / "a.parquet")
    assert data.text(tmp_path / "a.parquet").label_names == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"text": "fine"}\n{"text": "half \\ud800"}\n', "row 2 of the column 'text' holds half a sign"),
        ('{"x": ' + "9" * 50 + "}\n", "the column 'x' holds int too large"),
        ('{"x": ' + "9" * 5000 + "}\n", "line 1 is not JSON .a number of too many digits"),
    ],
)
def test_values_that_no_column_takes_are_refused(rows: str, message: str, tmp_path: Path):
    with pytest.raises(DataError, match=message):
        data.load(written(tmp_path, "rows.jsonl", rows))


def test_a_parquet_column_is_refused_by_its_own_sizes_before_it_is_read(tmp_path: Path):
    pq.write_table(pa.table({"x": pa.repeat(1.0, 3_000_000)}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with unpacking_at_most(10**7), pytest.raises(DataError, match=r"'x': unpacked it takes 24\.0 MB"):
        data.arrays(tmp_path / "a.parquet")


def test_a_text_file_is_refused_by_its_size_before_it_is_read(tmp_path: Path):
    with (tmp_path / "a.csv").open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(DataError, match=r"unpacked it takes 32\.2 GB"), unpacking_at_most(10**9):
        data.load(tmp_path / "a.csv")
