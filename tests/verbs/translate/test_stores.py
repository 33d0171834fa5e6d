"""Every store: read, translated, resumed, stamped; nothing lost, nothing doubled, the source untouched."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import store_helpers as helpers

from transship.errors import DataError, MissingError, OptionError, OutputError
from transship.verbs.translate import Ridge, save_map
from transship.verbs.translate.apply import apply_map, plan_apply
from transship.verbs.translate.stores import Columns, Stamp, open_source, parquet, place, qdrant

COUNT = helpers.COUNT
# room for a dozen rows at a time


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transship.verbs.translate.apply.ROWS", 13)


def run(saved, source: str, out: str, **options) -> list:
    return list(apply_map(saved, source, out, **options))


def read(reference: str) -> dict[str, np.ndarray]:
    source = open_source(reference)
    rows = {
        str(identity): vector
        for batch in source.batches(64)
        for identity, vector in zip(batch.ids, batch.vectors, strict=True)
    }
    assert len(rows) == source.rows
    source.close()
    return rows


def expected(saved, rows: np.ndarray) -> np.ndarray:
    moved = saved.translator.transform(rows)
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)


def content(root: Path) -> dict[str, str]:
    return {
        file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(root.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


@pytest.mark.parametrize("kind", helpers.KINDS)
def test_every_store_gives_back_translated_rows_under_their_ids(kind: str, saved, tmp_path: Path):
    rows = helpers.make_rows()
    source = helpers.build(kind, tmp_path / "in", rows)
    before = content(tmp_path / "in")
    steps = run(saved, source, helpers.target(kind, tmp_path))
    qdrant.close_clients()
    assert steps[-1].done == steps[-1].rows == COUNT
    if kind != "qdrant":  # an embedded Qdrant writes to its own folder when it is opened
        assert content(tmp_path / "in") == before
    actual = read(helpers.target(kind, tmp_path))
    moved = expected(saved, rows)
    assert set(actual) == {str(number) for number in range(1, COUNT + 1)}
    np.testing.assert_allclose(np.stack([actual[str(i + 1)] for i in range(COUNT)]), moved, atol=1e-6)


@pytest.mark.parametrize("kind", helpers.KINDS)
def test_the_result_says_whose_space_it_is_in_and_is_not_translated_twice(kind: str, saved, tmp_path: Path):
    source = helpers.build(kind, tmp_path / "in", helpers.make_rows())
    out = helpers.target(kind, tmp_path)
    run(saved, source, out)
    stamp = open_source(out).stamp
    assert (stamp.model, stamp.map) == ("new", saved.hash)
    if kind != "qdrant":
        assert stamp.quality == {"recall": 0.5}
    with pytest.raises(DataError, match="translated already"):
        run(saved, out, helpers.target(kind, tmp_path / "again"))


@pytest.mark.parametrize("kind", ["parquet", "folder", "hive", "lance"])
def test_other_columns_are_kept_and_every_row_is_stamped(kind: str, saved, tmp_path: Path):
    source = helpers.build(kind, tmp_path / "in", helpers.make_rows())
    out = helpers.target(kind, tmp_path)
    run(saved, source, out)
    if kind == "lance":
        import lancedb

        table = lancedb.connect(str(tmp_path / "outdb")).open_table("moved").to_arrow()
    else:
        table = pa.dataset.dataset(out, partitioning="hive").to_table()
    rows = table.sort_by("id").to_pylist()
    assert [row["title"] for row in rows] == [f"title {row['id']}" for row in rows]
    assert {row["vector_model"] for row in rows} == {"new"}
    assert {row["vector_map"] for row in rows} == {saved.hash}
    if kind == "hive":
        assert all(row["year"] == 2000 + (row["id"] - 1) % 3 for row in rows)
        assert sorted(file.parent.name for file in Path(out).rglob("*.parquet")) == [
            "year=2000",
            "year=2001",
            "year=2002",
        ]


def test_payloads_of_qdrant_are_kept_and_stamped(saved, tmp_path: Path):
    source = helpers.build("qdrant", tmp_path / "in", helpers.make_rows())
    run(saved, source, helpers.target("qdrant", tmp_path))
    batch = next(iter(open_source(helpers.target("qdrant", tmp_path)).batches(10)))
    for identity, payload in zip(batch.ids, batch.payloads, strict=True):
        assert payload["title"] == f"title {identity}"
        assert (payload["vector_model"], payload["vector_map"]) == ("new", saved.hash)


def test_a_lance_table_killed_before_its_first_commit_starts_anew(saved, tmp_path: Path):
    rows = helpers.make_rows()
    source = helpers.build("lance", tmp_path / "in", rows)
    (tmp_path / "outdb" / "moved__partial.lance" / "data").mkdir(parents=True)  # data, and no version yet
    run(saved, source, helpers.target("lance", tmp_path))
    assert len(read(helpers.target("lance", tmp_path))) == COUNT


@pytest.mark.parametrize("kind", helpers.KINDS)
@pytest.mark.parametrize("stop", [2, 5])
def test_a_run_that_stopped_goes_on_and_gives_the_same_rows(
    kind: str, stop: int, saved, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(parquet, "PART_ROWS", 12)
    from transship.verbs.translate.stores import lance

    monkeypatch.setattr(lance, "COMMIT_ROWS", 12)
    monkeypatch.setattr(qdrant, "UPSERT", 8)
    rows = helpers.make_rows()
    source = helpers.build(kind, tmp_path / "in", rows)
    out = helpers.target(kind, tmp_path)
    steps = apply_map(saved, source, out)
    for _ in range(stop):
        next(steps)
    steps.close()
    qdrant.close_clients()
    again = run(saved, source, out)
    if stop == 5:
        assert again[0].done > 0
    qdrant.close_clients()
    actual = read(out)
    np.testing.assert_allclose(
        np.stack([actual[str(i + 1)] for i in range(COUNT)]), expected(saved, rows), atol=1e-6
    )
    assert len(actual) == COUNT


@pytest.mark.parametrize("kind", [kind for kind in helpers.KINDS if kind != "qdrant"])
def test_an_existing_target_is_kept_without_force(kind: str, saved, tmp_path: Path):
    source = helpers.build(kind, tmp_path / "in", helpers.make_rows())
    out = helpers.target(kind, tmp_path)
    run(saved, source, out)
    assert [step.done for step in run(saved, source, out)] == [COUNT]  # the same once more: nothing to do
    x = helpers.make_rows(200, 6, seed=7)
    other = save_map(Ridge(alpha=9.0).fit(x, x[:, :5]), tmp_path / "other", {"unit_target": True})
    with pytest.raises(OutputError, match="exists already"):
        run(other, source, out)
    assert run(other, source, out, force=True)[-1].done == COUNT
    assert open_source(out).stamp.map == other.hash


def test_a_finished_qdrant_collection_leaves_nothing_to_do_and_a_foreign_one_is_refused(
    saved, tmp_path: Path
):
    source = helpers.build("qdrant", tmp_path / "in", helpers.make_rows())
    out = helpers.target("qdrant", tmp_path)
    run(saved, source, out)
    assert run(saved, source, out)[0].done == COUNT
    foreign = f"{source.partition('#')[0]}#other"
    client = qdrant.client(place(source))
    from qdrant_client import models

    client.create_collection(
        "other", vectors_config=models.VectorParams(size=5, distance=models.Distance.DOT)
    )
    client.upsert("other", [models.PointStruct(id=1, vector=[1.0] * 5)])
    with pytest.raises(OutputError, match="exists already"):
        run(saved, source, foreign)


@pytest.mark.parametrize("kind", [kind for kind in helpers.KINDS if kind != "qdrant"])
def test_leftovers_of_another_map_are_not_continued(kind: str, saved, tmp_path: Path, monkeypatch):
    from transship.verbs.translate.stores import lance

    monkeypatch.setattr(parquet, "PART_ROWS", 12)
    monkeypatch.setattr(lance, "COMMIT_ROWS", 12)
    source = helpers.build(kind, tmp_path / "in", helpers.make_rows())
    out = helpers.target(kind, tmp_path)
    steps = apply_map(saved, source, out)
    for _ in range(6):
        next(steps)
    steps.close()
    x = helpers.make_rows(200, 6, seed=7)
    other = save_map(Ridge(alpha=9.0).fit(x, x[:, :5]), tmp_path / "other", {"unit_target": True})
    with pytest.raises(DataError, match="beginning of another translation"):
        run(other, source, out)
    assert run(other, source, out, force=True)[-1].done == COUNT


@pytest.mark.parametrize("kind", helpers.KINDS)
def test_rows_of_another_width_are_refused(kind: str, saved, tmp_path: Path):
    source = helpers.build(kind, tmp_path / "in", helpers.make_rows(width=4))
    with pytest.raises(DataError, match="4 wide and the map takes 6"):
        run(saved, source, helpers.target(kind, tmp_path))
    same_as_target = helpers.build(kind, tmp_path / "in2", helpers.make_rows(width=5))
    with pytest.raises(DataError, match="was it translated already"):
        plan_apply(saved, same_as_target)


@pytest.mark.parametrize(
    "kind", ["parquet", "folder", "hive", "npy", "faiss"]
)  # the others refuse to take NaN
def test_vectors_that_are_not_finite_are_named_and_nothing_is_made(kind: str, saved, tmp_path: Path):
    rows = helpers.make_rows()
    rows[70, 2] = np.nan
    source = helpers.build(kind, tmp_path / "in", rows)
    with pytest.raises(DataError, match="NaN or infinity"):
        run(saved, source, helpers.target(kind, tmp_path))
    assert not Path(helpers.target(kind, tmp_path)).exists()


def test_rows_of_another_model_are_refused(saved, tmp_path: Path):
    rows = helpers.table(helpers.make_rows(), list(range(COUNT)))
    rows = rows.replace_schema_metadata({"transship": Stamp("somebody else's").to_json()})
    pq.write_table(rows, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="are of 'somebody else's' and the map was fitted on 'old'"):
        run(saved, str(tmp_path / "rows.parquet"), str(tmp_path / "out.parquet"))


@pytest.mark.parametrize("kind", ["parquet", "npy", "faiss", "folder"])
def test_a_store_that_disappears_says_where_to_go_on(kind: str, saved, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(parquet, "PART_ROWS", 12)
    rows = helpers.make_rows()
    source = helpers.build(kind, tmp_path / "in", rows)
    steps = apply_map(saved, source, helpers.target(kind, tmp_path))
    for _ in range(4):
        next(steps)
    hidden = tmp_path / "hidden"
    (tmp_path / "in").rename(hidden)
    with pytest.raises(DataError, match="goes on from there"):
        list(steps)
    hidden.rename(tmp_path / "in")
    assert run(saved, source, helpers.target(kind, tmp_path))[-1].done == COUNT
    assert len(read(helpers.target(kind, tmp_path))) == COUNT


def test_rows_move_between_kinds_of_stores(saved, tmp_path: Path):
    rows = helpers.make_rows()
    for kind, other in [
        ("npy", "parquet"),
        ("parquet", "lance"),
        ("lance", "qdrant"),
        ("qdrant", "parquet"),
        ("folder", "faiss"),
    ]:
        root = tmp_path / f"{kind}-{other}"
        source = helpers.build(kind, root / "in", rows)
        run(saved, source, helpers.target(other, root))
        actual = read(helpers.target(other, root))
        np.testing.assert_allclose(actual["17"], expected(saved, rows[16:17])[0], atol=1e-6)
        assert len(actual) == COUNT


def test_a_plan_states_rows_bytes_time_and_memory(saved, tmp_path: Path):
    source = helpers.build("parquet", tmp_path / "in", helpers.make_rows())
    plan = plan_apply(saved, source)
    assert (plan.rows, plan.widths, plan.bytes_in, plan.bytes_out) == (
        COUNT,
        (6, 5),
        COUNT * 6 * 4,
        COUNT * 5 * 4,
    )
    assert plan.seconds >= 0
    assert plan.memory > 0
    assert plan.unit


@pytest.mark.parametrize("reference", ["gone.parquet", "gone.npy", "gone/rows.lance", "gone.faiss", "gone"])
def test_a_store_that_is_not_there_is_one_sentence(reference: str, tmp_path: Path):
    with pytest.raises(MissingError, match="there is no such"):
        open_source(str(tmp_path / reference))


def test_vectors_are_not_written_under_the_name_of_another_format(saved, tmp_path: Path):
    source = helpers.build("parquet", tmp_path / "in", helpers.make_rows())
    with pytest.raises(OptionError, match=r"a \.csv file is no store of vectors; name it \.parquet"):
        list(apply_map(saved, source, str(tmp_path / "out.csv")))


def test_broken_files_are_one_sentence(tmp_path: Path):
    for name in ("rows.parquet", "rows.npy", "rows.faiss"):
        (tmp_path / name).write_bytes(b"PAR1 nothing of the kind")
        with pytest.raises(DataError, match="not a readable"):
            open_source(str(tmp_path / name))


def test_columns_are_found_or_named(tmp_path: Path):
    rows = helpers.make_rows(10)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 6)
    pq.write_table(
        pa.table({"key": list("abcdefghij"), "one": vectors, "two": vectors}), tmp_path / "x.parquet"
    )
    with pytest.raises(DataError, match="name it with --vector-column"):
        open_source(tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet", Columns(vector="two"))
    assert next(source.batches(3)).ids == ["a", "b", "c"]
    with pytest.raises(DataError, match="has no column 'three'"):
        open_source(tmp_path / "x.parquet", Columns(vector="three"))


def test_ragged_and_missing_vectors_are_refused(tmp_path: Path):
    for number, broken in enumerate(([[1.0, 2.0], [1.0]], [[1.0, 2.0], None])):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"id": [1, 2], "vector": pa.array(broken, pa.list_(pa.float32()))}), file)
        with pytest.raises(DataError, match=r"not all 2 wide|have no vector"):
            list(open_source(file).batches(10))


def test_a_query_index_takes_queries_of_the_new_model_and_outlives_its_parts(tmp_path: Path):
    import gc

    import faiss

    from transship.verbs.translate.stores.faiss_file import query_index

    rows = helpers.make_rows(100, 5)
    matrix, bias = np.random.default_rng(0).normal(size=(8, 5)), np.arange(5.0)
    queries = helpers.make_rows(4, 8, seed=3)

    def chained():
        index = faiss.IndexFlatIP(5)
        index.add(rows)
        return query_index(index, matrix, bias)

    result = chained()
    gc.collect()
    scores, places = result.search(queries, 3)
    exact = (queries @ matrix + bias) @ rows.T
    np.testing.assert_array_equal(places, np.argsort(-exact, axis=1)[:, :3])
    faiss.write_index(result, str(tmp_path / "query.faiss"))
    _, again = faiss.read_index(str(tmp_path / "query.faiss")).search(queries, 3)
    np.testing.assert_array_equal(places, again)
    np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :3], rtol=1e-4)


def test_a_qdrant_server_is_used_when_one_runs(saved):
    import urllib.request
    import uuid

    from qdrant_client import QdrantClient, models

    server = "http://localhost:6333"
    try:
        urllib.request.urlopen(f"{server}/readyz", timeout=1)
    except OSError as error:
        pytest.skip(f"no Qdrant server answers at {server} ({error})")
    rows, name = helpers.make_rows(), f"transship-{uuid.uuid4().hex}"
    client = QdrantClient(url=server)
    try:
        client.create_collection(
            name, vectors_config=models.VectorParams(size=6, distance=models.Distance.DOT)
        )
        client.upsert(name, [models.PointStruct(id=i + 1, vector=row.tolist()) for i, row in enumerate(rows)])
        run(saved, f"qdrant:{server}#{name}", f"qdrant:{server}#{name}-moved")
        actual = read(f"qdrant:{server}#{name}-moved")
        np.testing.assert_allclose(actual["17"], expected(saved, rows[16:17])[0], atol=1e-5)
        assert len(actual) == COUNT
    finally:
        client.delete_collection(name)
        client.delete_collection(f"{name}-moved")


def test_a_server_that_does_not_answer_is_one_sentence():
    with pytest.raises(MissingError, match="cannot be opened"):
        open_source("qdrant:http://localhost:1#rows")


def test_a_second_writer_to_one_output_is_refused(saved, tmp_path: Path):
    np.save(tmp_path / "in.npy", helpers.make_rows())
    target = str(tmp_path / "out.npy")
    first = apply_map(saved, str(tmp_path / "in.npy"), target)
    next(first)
    with pytest.raises(OutputError, match="another process is changing it"):
        run(saved, str(tmp_path / "in.npy"), target)
    assert list(first)[-1].done == COUNT
    assert len(read(target)) == COUNT


def test_ids_of_an_old_file_do_not_stay_with_the_rows_of_a_new_one(saved, tmp_path: Path):
    rows, target = helpers.make_rows(), tmp_path / "out.npy"
    np.save(tmp_path / "named.npy", rows)
    np.save(tmp_path / "named.ids.npy", np.arange(1000, 1000 + len(rows)))
    np.save(tmp_path / "plain.npy", rows)
    run(saved, str(tmp_path / "named.npy"), str(target))
    assert (tmp_path / "out.ids.npy").exists()
    run(saved, str(tmp_path / "plain.npy"), str(target), force=True)
    assert not (tmp_path / "out.ids.npy").exists()
    assert sorted(read(str(target))) == sorted(map(str, range(len(rows))))


def test_what_lies_in_a_table_beside_its_data_is_kept(saved, tmp_path: Path):
    np.save(tmp_path / "in.npy", helpers.make_rows())
    (tmp_path / "db" / "out.lance").mkdir(parents=True)
    (tmp_path / "db" / "out.lance" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"it holds notes\.txt"):
        run(saved, str(tmp_path / "in.npy"), str(tmp_path / "db" / "out.lance"), force=True)
    assert (tmp_path / "db" / "out.lance" / "notes.txt").read_text() == "mine"
