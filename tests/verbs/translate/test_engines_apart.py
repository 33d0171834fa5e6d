"""What other processes do of `check` and `embed`: order, deaths, and what is left when a start goes wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import store_helpers as helpers

from transship.verbs.translate import Ridge, SavedMap, check_map, embed, save_map
from transship.verbs.translate.engines import LocalEngine, RayEngine
from transship.verbs.translate.fit import pairs

ROWS = 200


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=2, object_store_memory=80_000_000, **quiet)
    yield ray
    ray.shutdown()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(pairs, "PART_ROWS", 16)
    monkeypatch.setattr(embed, "PART_ROWS", 4)
    monkeypatch.setattr(embed.TextSource, "part_rows", 4)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[SavedMap, str, str]:
    """A map, and two stores that share most ids, in different orders and in many parts."""
    x = helpers.make_rows(ROWS, 6, seed=7)
    y = x @ np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    saved = save_map(Ridge(alpha=0.01).fit(x, y), tmp_path / "map", {"source": "old", "target": "new"})
    order = np.random.default_rng(2).permutation(ROWS)[:150]
    for name, rows, ids in (("old", x, np.arange(ROWS)), ("new", y[order], order)):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        pq.write_table(pa.table({"id": ids, "vector": vectors}), tmp_path / f"{name}.parquet")
    return saved, str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet")


@pytest.fixture
def texts(tmp_path: Path) -> str:
    words = [f"sentence number {number} about {'ships' if number % 2 else 'birds'}" for number in range(11)]
    pq.write_table(pa.table({"id": [f"t{n}" for n in range(11)], "text": words}), tmp_path / "texts.parquet")
    return str(tmp_path / "texts.parquet")


def joined(stores, engine) -> pairs.VectorPairs:
    from transship.verbs.translate.stores import open_source

    _, old, new = stores
    return pairs.read_pairs(open_source(old), open_source(new), engine=engine)


def same_pairs(one: pairs.VectorPairs, other: pairs.VectorPairs) -> None:
    assert one.ids == other.ids
    assert (one.only_old, one.only_new) == (other.only_old, other.only_new)
    np.testing.assert_array_equal(one.old, other.old)
    np.testing.assert_array_equal(one.new, other.new)


@pytest.mark.slow
def test_check_by_two_processes_joins_many_parts_in_the_order_of_one(stores):
    saved, old, new = stores
    alone = joined(stores, None)
    assert len(alone) == 150
    with LocalEngine(2, "transship.verbs.translate.fit.pairs") as engine:
        same_pairs(alone, joined(stores, engine))
        # the same processes serve both stores of a second command
        assert check_map(saved.path, old, new, engine=engine) == check_map(saved.path, old, new)


@pytest.mark.slow
def test_embed_by_two_processes_writes_the_parts_of_one(texts, minilm: Path, tmp_path: Path):
    for name, engine in (("one", LocalEngine()), ("two", LocalEngine(2))):
        steps = list(embed.embed_texts(str(minilm), texts, str(tmp_path / f"{name}.parquet"), engine=engine))
        assert steps[-1].done == 11
    first, two = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    assert first.schema.equals(two.schema, check_metadata=True)
    assert first.drop_columns("vector").equals(two.drop_columns("vector"))
    vectors = [np.stack(table["vector"].to_numpy(zero_copy_only=False)) for table in (first, two)]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)  # threads per process may differ


def killed_once(work, mark: Path):
    """Return `work` whose first call in another process than this dies."""
    driver, path, kill = os.getpid(), str(mark), signal.SIGKILL

    def deadly(shared, item):
        import os

        if os.getpid() != driver:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return work(shared, item)
            os.kill(os.getpid(), kill)
        return work(shared, item)

    return deadly


@pytest.mark.slow
def test_a_worker_killed_during_check_costs_a_retry_and_no_pair(cluster, stores, tmp_path, monkeypatch):
    alone = joined(stores, None)
    monkeypatch.setattr(pairs, "pick_part", killed_once(pairs.pick_part, tmp_path / "killed"))
    same_pairs(alone, joined(stores, RayEngine(jobs=2)))
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
def test_a_worker_killed_during_embed_costs_a_retry_and_no_text(
    cluster, texts, minilm: Path, tmp_path: Path, monkeypatch
):
    list(embed.embed_texts(str(minilm), texts, str(tmp_path / "one.parquet")))
    monkeypatch.setattr(embed, "embed_part", killed_once(embed.embed_part, tmp_path / "killed"))
    list(embed.embed_texts(str(minilm), texts, str(tmp_path / "two.parquet"), engine=RayEngine(jobs=2)))
    assert (tmp_path / "killed").exists()
    first, two = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    assert first.drop_columns("vector").equals(two.drop_columns("vector"))
    assert two.num_rows == 11


def test_all_processes_start_with_the_block():
    with LocalEngine(4) as engine:
        assert len(engine.workers) == 3


def test_vectors_of_another_dtype_are_other_vectors(tmp_path: Path):
    notes = {embed.Encoder(str(tmp_path), dtype=dtype).note("texts") for dtype in (None, "bfloat16")}
    assert len(notes) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_workers_end_when_the_calling_process_is_killed():
    code = (
        "import time\n"
        "from transship.verbs.translate.engines import LocalEngine\n"
        "with LocalEngine(2) as engine:\n"
        "    print(*[worker.pid for worker in engine.workers], flush=True)\n"
        "    list(engine.run(pow, 2, [1, 2, 3, 4]))\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    left = Path(f"/proc/{worker}").exists()
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    assert not left


@pytest.mark.slow
def test_large_results_come_whole_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LocalEngine(2) as engine:
        by_name = dict(engine.run(np.full, 300_000, [1, 2, 3, 4, 5]))
    assert [float(by_name[number].sum()) for number in range(5)] == [300_000.0 * item for item in range(1, 6)]
    assert not list(tmp_path.iterdir())


def test_a_relative_path_means_the_same_in_a_worker_that_stands_elsewhere(tmp_path, monkeypatch):
    from transship.verbs.translate.stores import place

    monkeypatch.chdir(tmp_path)
    assert place("in/rows.parquet").location == str(tmp_path / "in" / "rows.parquet")
    assert place("in/rows.parquet").text == "in/rows.parquet"
    assert place("s3://bucket/rows").location == "s3://bucket/rows"
