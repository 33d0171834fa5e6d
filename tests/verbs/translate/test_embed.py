"""Embedding texts: every forward pass is kept, and no text is embedded twice or missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transship.errors import DataError, OutputError
from transship.verbs.translate import LazyIndex
from transship.verbs.translate import embed as embedding

WORDS = ["ship", "bird", "a long sentence about ships at sea", "sail", "a bird over land", "sea", "land"]


def write(path: Path, texts: list[str]) -> str:
    pq.write_table(pa.table({"id": [f"t{n}" for n in range(len(texts))], "text": texts}), path)
    return str(path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that were embedded, by an encoder that needs no model: their lengths and first letters."""
    texts: list[str] = []

    def encode(self, given):
        texts.extend(given)
        return np.asarray([[len(text), ord(text[0]), 1] for text in given], np.float32)

    class Model:
        def length(self, text: str) -> int:
            return len(text)

    monkeypatch.setattr(embedding, "load_model", lambda *_, **__: Model())
    monkeypatch.setattr(embedding, "find_model", lambda name: name)
    monkeypatch.setattr(embedding.ReadyEncoder, "__call__", encode)
    return texts


@pytest.mark.parametrize("name", ["out.parquet", "out.npy"])
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_stopped_run_goes_on_with_the_next_forward_pass(
    name: str, stop: int, asked: list[str], tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(embedding, "PART_ROWS", 5 if name == "out.parquet" else 2)
    monkeypatch.setattr(embedding.TextSource, "part_rows", 5)
    texts = write(tmp_path / "texts.parquet", WORDS)
    steps = embedding.embed_texts("model", texts, str(tmp_path / name), batch_size=2)
    done = [next(steps).done for _ in range(stop)]
    steps.close()
    assert done[-1] > done[0] == 0
    before = len(asked)
    again = list(embedding.embed_texts("model", texts, str(tmp_path / name), batch_size=2))
    assert again[-1].done == len(WORDS)
    # one more text tells the width
    assert len(asked) - before - 1 == len(WORDS) - done[-1]
    if name == "out.parquet":
        rows = np.stack(pq.read_table(tmp_path / name)["vector"].to_numpy(zero_copy_only=False))
    else:
        rows = np.load(tmp_path / name)
    np.testing.assert_array_equal(rows[:, 0], [len(text) for text in WORDS])
    assert not list(tmp_path.glob(".out*"))


def test_a_row_that_a_kill_cut_off_is_embedded_again(asked: list[str], tmp_path: Path):
    texts = write(tmp_path / "texts.parquet", WORDS)
    steps = embedding.embed_texts("model", texts, str(tmp_path / "out.parquet"), batch_size=2)
    next(steps)
    next(steps)
    steps.close()
    with next((tmp_path / ".out.parquet.partial").glob("*.rows")).open("ab") as file:
        file.write(b"12345")
    before = len(asked)
    list(embedding.embed_texts("model", texts, str(tmp_path / "out.parquet"), batch_size=2))
    assert len(asked) - before - 1 == len(WORDS) - 2
    rows = np.stack(pq.read_table(tmp_path / "out.parquet")["vector"].to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(rows[:, 0], [len(text) for text in WORDS])


def test_a_missing_text_is_refused(asked: list[str], tmp_path: Path):
    texts = write(tmp_path / "texts.parquet", ["ship", " ", "bird", ""])
    with pytest.raises(DataError, match="2 of 4 texts are empty, the first has id t1"):
        list(embedding.embed_texts("model", texts, str(tmp_path / "out.parquet")))
    assert not asked
    index = LazyIndex(np.eye(3, dtype=np.float32), embed=np.ones, texts={0: "", 1: "ship", 2: "bird"})
    with pytest.raises(DataError, match="the text of id 0 is empty"):
        index.move([0, 1])


@pytest.mark.parametrize("name", ["out.parquet", "out.npy", "out.lance"])
def test_a_target_under_a_file_is_refused_in_one_sentence(name: str, asked: list[str], tmp_path: Path):
    (tmp_path / "file").write_text("")
    texts = write(tmp_path / "texts.parquet", WORDS)
    with pytest.raises(OutputError, match=r"(cannot be written to|cannot be made).*choose another place"):
        list(embedding.embed_texts("model", texts, str(tmp_path / "file" / name)))


def test_the_longest_text_may_be_shorter_than_the_models_own_limit(minilm: Path, tmp_path: Path):
    texts = write(tmp_path / "texts.parquet", ["ships sail", "ships sail over the sea at night"])
    rows = {}
    for name, most in (("cut.parquet", 4), ("whole.parquet", None)):
        list(embedding.embed_texts(str(minilm), texts, str(tmp_path / name), max_length=most))
        rows[name] = np.stack(pq.read_table(tmp_path / name)["vector"].to_numpy(zero_copy_only=False))
    cut, whole = rows.values()
    np.testing.assert_allclose(cut[0], cut[1], atol=1e-5)  # [CLS] ships sail [SEP] is what both begin with
    np.testing.assert_allclose(cut[0], whole[0], atol=1e-5)
    assert np.abs(cut[1] - whole[1]).max() > 0.01
