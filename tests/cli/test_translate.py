"""The command line of translate: from two stores to a map, a page and a translated store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from transship.cli import group
from transship.cli.translate import command
from transship.errors import DataError, OptionError


def write(path: Path, rows: np.ndarray, first: int = 0) -> str:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.astype(np.float32).reshape(-1)), rows.shape[1])
    ids = [f"doc {first + number}" for number in range(len(rows))]
    pq.write_table(pa.table({"id": ids, "vector": vectors, "text": ids}), path)
    return str(path)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[str, str]:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(500, 8))
    old, new = (
        np.tanh(hidden @ rng.normal(size=(8, width)) / 3) + 0.1 * rng.normal(size=(500, width))
        for width in (16, 12)
    )
    new = new / np.linalg.norm(new, axis=1, keepdims=True)
    return write(tmp_path / "old.parquet", old), write(tmp_path / "new.parquet", new)


def run(*arguments: str):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_map_is_fitted_checked_planned_and_applied(stores: tuple[str, str], tmp_path: Path):
    old, new = stores
    page = tmp_path / "page.html"
    done = run(
        "fit", old, new, tmp_path / "map", "--source-model", "a", "--target-model", "b", "--report", page
    )
    assert done.exit_code == 0
    for each in (
        "procrustes",
        "ridge",
        "kernel",
        "irp",
        "old model alone",
        "chosen:",
        "score threshold of the old model",
        "LazyIndex",
    ):
        assert each in done.output
    html = page.read_text(encoding="utf-8")
    assert "What to do" in html
    shown = CliRunner().invoke(group, ["inspect", str(tmp_path / "map")]).output
    assert "map of embeddings" in shown
    assert "a → b" in shown
    assert "old index alone" in shown
    for shown in (
        "Recall by number of pairs",
        "forecast recall",
        "held-out recall",
        "ten native neighbours",
        "Lengths of vectors",
        "Old rows, held out",
        "The same rows after translation",
        "Worst rows",
    ):
        assert shown in html

    checked = json.loads(run("check", tmp_path / "map", old, new, "--json").stdout)
    assert checked["pairs"] == 500
    planned = json.loads(run("plan", tmp_path / "map", old, tmp_path / "out.parquet", "--json").stdout)
    assert planned["rows"] == 500
    assert not (tmp_path / "out.parquet").exists()
    applied = run("apply", tmp_path / "map", old, tmp_path / "out.parquet")
    assert "500 rows" in applied.output
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "vector", "text", "vector_model", "vector_map"]
    np.testing.assert_allclose(
        np.linalg.norm(np.stack(table["vector"].to_numpy(zero_copy_only=False)), axis=1), 1, atol=1e-5
    )


def test_one_method_with_its_options_is_printed_as_json(stores: tuple[str, str], tmp_path: Path):
    done = run(
        "fit", *stores, tmp_path / "map", "--method", "ridge", "-o", "alpha", "2.5", "--json", "--no-restore"
    )
    record = json.loads(done.stdout)
    assert record["chosen"] == "ridge"
    assert record["why"] == "ridge was asked for"
    assert json.loads((tmp_path / "map" / "map.json").read_text())["parameters"]["alpha"] == 2.5
    with pytest.raises(OptionError, match="did you mean 'alpha'"):
        run("fit", *stores, tmp_path / "map2", "--method", "ridge", "-o", "alhpa", "2.5")


def test_a_query_map_makes_a_faiss_index_for_new_queries(stores: tuple[str, str], tmp_path: Path):
    import faiss

    old, new = stores
    rows = np.stack(pq.read_table(old)["vector"].to_numpy(zero_copy_only=False))
    index = faiss.IndexFlatIP(16)
    index.add(rows)
    faiss.write_index(index, str(tmp_path / "old.faiss"))
    done = run(
        "fit", old, new, tmp_path / "map", "--direction", "query", "--method", "ridge", "--gate", "0.05"
    )
    assert "query with the old mean" in done.output
    run("apply", tmp_path / "map", tmp_path / "old.faiss", tmp_path / "query.faiss")
    chained = faiss.read_index(str(tmp_path / "query.faiss"))
    assert (chained.d, chained.ntotal) == (12, 500)
    with pytest.raises(DataError, match="a query map leaves the rows as they are"):
        run("apply", tmp_path / "map", old, tmp_path / "out.parquet")


def test_anchors_are_chosen_with_their_texts_and_the_ways_compared(stores: tuple[str, str], tmp_path: Path):
    old, new = stores
    done = run(
        "anchors", old, tmp_path / "chosen.parquet", "--count", "60", "--way", "kmeans", "--measure", new
    )
    table = pq.read_table(tmp_path / "chosen.parquet")
    assert table.num_rows == 60
    assert table["id"].to_pylist() == table["text"].to_pylist()
    assert "farthest: held-out recall@10" in done.output


def test_texts_are_embedded_with_their_ids_and_a_stopped_run_goes_on(
    minilm: Path, tmp_path: Path, monkeypatch
):
    from transship.verbs.translate import embed

    monkeypatch.setattr(embed, "PART_ROWS", 4)
    monkeypatch.setattr(embed.TextSource, "part_rows", 4)
    texts = [f"sentence number {number} about {'ships' if number % 2 else 'birds'}" for number in range(10)]
    pq.write_table(pa.table({"id": [f"t{n}" for n in range(10)], "text": texts}), tmp_path / "texts.parquet")
    steps = embed.embed_texts(str(minilm), str(tmp_path / "texts.parquet"), str(tmp_path / "out.parquet"))
    next(steps)
    next(steps)
    steps.close()
    done = run("embed", "--model", minilm, tmp_path / "texts.parquet", tmp_path / "out.parquet", "--json")
    assert json.loads(done.stdout)["rows"] == 10
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == [f"t{n}" for n in range(10)]
    assert table["text"].to_pylist() == texts
    rows = np.stack(table["vector"].to_numpy(zero_copy_only=False))
    assert rows.shape == (10, 384)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(minilm), device="cpu").encode(texts)
    np.testing.assert_allclose(rows, expected, atol=1e-4)


def test_mistakes_are_one_sentence(stores: tuple[str, str], tmp_path: Path):
    old, new = stores
    with pytest.raises(OptionError, match="needs the queries' vectors"):
        run("fit", old, new, tmp_path / "map", "--relevance", "judged.parquet")
    with pytest.raises(DataError, match=r"holds no map\.json"):
        run("apply", tmp_path, old, tmp_path / "out.parquet")


def test_the_help_names_every_step():
    help_text = run("--help").output
    for name in ("fit", "check", "plan", "apply", "embed", "anchors"):
        assert name in help_text


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on a file's size is Linux's")
def test_a_disk_that_takes_no_more_is_one_sentence_and_leaves_the_target_alone(
    stores: tuple[str, str], tmp_path: Path
):
    old, new = stores
    assert run("fit", old, new, tmp_path / "map", "--method", "ridge").exit_code == 0
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "from transship.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    words = ["translate", "apply", tmp_path / "map", old, tmp_path / "out.parquet"]
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "the disk takes no more (File too large)" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.parquet").exists()
