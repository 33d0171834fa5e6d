"""Stores with rows that cannot be translated, ids given twice, and FAISS indexes of many kinds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers

from transship.errors import DataError, OutputError
from transship.numerics import MemoryBudget
from transship.verbs.translate import load_map
from transship.verbs.translate.apply import RowsDone, apply_map
from transship.verbs.translate.stores import lance, open_source

COUNT = helpers.COUNT
FACTORIES = ["IVF4,Flat", "IDMap,IVF4,Flat", "PCA6,IVF4,Flat", "PCA6,Flat", "HNSW8,Flat"]


def apply(saved, source: str, target: str) -> list[RowsDone]:
    return list(apply_map(saved, source, target))


@pytest.mark.parametrize("kind", helpers.KINDS)
def test_vectors_of_zeros_are_named_and_not_translated(kind: str, saved, tmp_path: Path):
    rows = helpers.make_rows()
    rows[70] = 0
    source = helpers.build(kind, tmp_path / "in", rows)
    with pytest.raises(DataError, match="vectors are all zero, the first is id 71"):
        apply(saved, source, helpers.target(kind, tmp_path))


def test_rows_that_share_an_id_are_not_lost_in_qdrant_without_a_word(saved, tmp_path: Path):
    ids = list(range(1, COUNT + 1))
    ids[50] = 3
    source = helpers.build("parquet", tmp_path / "in", helpers.make_rows(), ids)
    with pytest.raises(DataError, match=f"{COUNT - 1} points of {COUNT} rows, since some rows have the same"):
        apply(saved, source, helpers.target("qdrant", tmp_path))
    apply(saved, source, helpers.target("lance", tmp_path))
    kept = open_source(helpers.target("lance", tmp_path))
    assert [name for batch in kept.batches(64) for name in batch.ids] == ids


def test_a_disk_that_qdrant_cannot_write_to_is_a_sentence(saved, tmp_path: Path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    source, target = (
        helpers.build("parquet", tmp_path / "in", helpers.make_rows()),
        helpers.target("qdrant", tmp_path),
    )
    monkeypatch.setattr("qdrant_client.local.persistence.CollectionPersistence.persist", refuse)
    with pytest.raises(OutputError, match=r"takes no more rows \(OperationalError: disk I/O error\)"):
        apply(saved, source, target)


@pytest.mark.parametrize("factory", FACTORIES)
def test_faiss_indexes_of_many_kinds_give_back_their_rows_under_their_ids(factory: str, tmp_path: Path):
    import faiss

    from transship.verbs.translate.lazy import open_index

    rows, ids = helpers.make_rows(300), np.random.default_rng(0).permutation(300) + 1000
    index = faiss.index_factory(6, factory)
    index.train(rows)
    named = "IVF" in factory
    index.add_with_ids(rows, ids) if named else index.add(rows)
    faiss.write_index(index, str(tmp_path / "rows.faiss"))
    source = open_source(str(tmp_path / "rows.faiss"))
    by_name = {
        int(name): row
        for batch in source.batches(64)
        for name, row in zip(batch.ids, batch.vectors, strict=True)
    }
    names = ids if named else np.arange(300)
    np.testing.assert_allclose(np.stack([by_name[int(name)] for name in names]), rows, atol=1e-5)
    np.testing.assert_allclose(open_index(index).vectors([int(names[7])])[0], rows[7], atol=1e-5)


def test_a_lance_table_that_disappears_says_where_to_go_on(saved, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(lance, "COMMIT_ROWS", 12)
    source = helpers.build("lance", tmp_path / "in", helpers.make_rows())
    steps = apply_map(saved, source, helpers.target("lance", tmp_path), memory=MemoryBudget(2800))
    for _ in range(4):
        next(steps)
    (tmp_path / "in").rename(tmp_path / "hidden")
    with pytest.raises(DataError, match="goes on from there"):
        list(steps)
    (tmp_path / "hidden").rename(tmp_path / "in")
    assert apply(saved, source, helpers.target("lance", tmp_path))[-1].done == COUNT
    assert open_source(helpers.target("lance", tmp_path)).rows == COUNT


def test_what_is_no_store_says_what_it_is(saved, tmp_path: Path):
    rows = helpers.build("parquet", tmp_path / "in", helpers.make_rows())
    helpers.build("lance", tmp_path / "in", helpers.make_rows())
    (tmp_path / "texts.jsonl").write_text('{"id": "a", "text": "a ship"}\n')
    with pytest.raises(DataError, match=r"a \.jsonl file holds texts; embed it: transship translate embed"):
        open_source(str(tmp_path / "texts.jsonl"))
    with pytest.raises(DataError, match=r"a folder of LanceDB tables \(rows.lance\); name one: .*rows"):
        open_source(str(tmp_path / "in" / "db"))
    with pytest.raises(DataError, match="is a map, no store of vectors; give MAP before IN"):
        open_source(saved.path)
    with pytest.raises(DataError, match="is a file, and a map is a folder; give MAP first"):
        load_map(rows)
