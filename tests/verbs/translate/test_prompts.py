"""Prompts of an encoder in `embed`, and in the maps between spaces."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from transship.errors import DataError, OptionError
from transship.verbs.translate import LazyIndex, embed_texts
from transship.verbs.translate.embed import Encoder, check_queries
from transship.verbs.translate.stores import open_source

QUERY = "Represent this sentence for searching relevant passages: "


@pytest.fixture
def asymmetric(minilm: Path, tmp_path: Path) -> Path:
    """An encoder that wants words before a query."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    for file in minilm.iterdir():
        if file.is_file() and file.name != "config_sentence_transformers.json":
            shutil.copyfile(file, folder / file.name)
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": QUERY}}), "utf-8"
    )
    return folder


def embedded(folder: Path, out: Path, **given: str) -> np.ndarray:
    texts = out.parent / "texts.csv"
    texts.write_text("id,text\n1,where do ships go\n2,a cat on a mat\n", "utf-8")
    for _ in embed_texts(str(folder), str(texts), str(out), **given):
        pass
    return np.stack(pq.read_table(out).column("vector").to_numpy())


def test_forgetting_the_prompt_changes_the_vectors(asymmetric: Path, tmp_path: Path):
    documents = embedded(asymmetric, tmp_path / "documents.parquet")
    queries = embedded(asymmetric, tmp_path / "queries.parquet", purpose="query")
    by_hand = embedded(asymmetric, tmp_path / "hand.parquet", prompt=QUERY)
    assert np.abs(queries - documents).max() > 0.01
    np.testing.assert_array_equal(queries, by_hand)
    with pytest.raises(OptionError, match="both --prompt and --as"):
        embedded(asymmetric, tmp_path / "both.parquet", prompt=QUERY, purpose="query")


def test_vectors_with_a_prompt_are_of_a_space_of_their_own(asymmetric: Path, minilm: Path, tmp_path: Path):
    """The stamp is what a map is fitted on and what `apply` compares."""
    embedded(asymmetric, tmp_path / "queries.parquet", purpose="query")
    source = open_source(str(tmp_path / "queries.parquet"))
    assert source.stamp.model == f"{asymmetric} after {QUERY!r}"
    source.close()
    assert Encoder(str(asymmetric), purpose="document").space == str(asymmetric)
    assert Encoder(str(minilm), purpose="query").space == str(minilm)


def test_judged_queries_need_the_words_of_a_query(asymmetric: Path, minilm: Path, tmp_path: Path):
    for purpose, refusal in (("document", "--as query"), ("query", None)):
        embedded(asymmetric, tmp_path / f"{purpose}.parquet", purpose=purpose)
        source = open_source(str(tmp_path / f"{purpose}.parquet"))
        if refusal is None:
            check_queries(source, str(asymmetric))
        else:
            with pytest.raises(DataError, match=refusal):
                check_queries(source, str(asymmetric))
        with pytest.raises(DataError, match="the queries are of"):
            check_queries(source, str(minilm))
        source.close()


def test_a_text_asks_an_index_with_the_words_of_a_query(asymmetric: Path, tmp_path: Path):
    rows = embedded(asymmetric, tmp_path / "documents.parquet")
    texts = {"1": "where do ships go", "2": "a cat on a mat"}
    index = LazyIndex((list(texts), rows), embed=str(asymmetric), texts=texts)
    index.move(list(texts))
    asked = embedded(asymmetric, tmp_path / "queries.parquet", purpose="query")
    for row, text in enumerate(texts.values()):
        by_text = index.search(text, 2, old_query=rows[row])
        by_vector = index.search(asked[row], 2, old_query=rows[row])
        forgotten = index.search(rows[row], 2, old_query=rows[row])
        assert [hit.id for hit in by_text] == [hit.id for hit in by_vector]
        scores = [np.array([hit.score for hit in hits]) for hits in (by_text, by_vector, forgotten)]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
        assert abs(scores[0] - scores[2]).max() > 0.01
