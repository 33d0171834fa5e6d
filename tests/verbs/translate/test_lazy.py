"""Lazy migration on every kind of index, with texts that are numbers and an encoder that is a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers

from transship.errors import DataError, OptionError
from transship.verbs.translate import KernelRidge, LazyIndex, Ridge, restore_variance
from transship.verbs.translate.maps.vectors import neighbours, overlap
from transship.verbs.translate.stores import open_source, qdrant


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class World:
    """Documents 1..n in an old and a new space, queries in both, and the new encoder as a lookup."""

    def __init__(self, count: int = 400, queries: int = 40) -> None:
        rng = np.random.default_rng(0)
        hidden = rng.normal(size=(count + queries, 10))
        spaces = [
            unit(
                np.tanh(hidden @ rng.normal(size=(10, width)))
                + 0.4 * rng.normal(size=(count + queries, width))
            )
            for width in (24, 18)
        ]
        self.old, self.new = (space[:count] for space in spaces)
        self.old_queries, self.queries = (space[count:] for space in spaces)
        self.ids = list(range(1, count + 1))
        self.texts = {identity: str(identity) for identity in self.ids}
        self.embedded: list[str] = []
        self.fitted = Ridge().fit(self.old[:300], self.new[:300])
        self.query_map = Ridge().fit(self.new[:300], self.old[:300])

    def embed(self, texts):
        self.embedded += texts
        return self.new[[int(text) - 1 for text in texts]]

    def recall(self, index: LazyIndex, **options) -> float:
        hits = index.search_many(self.queries, 10, **options)
        best = neighbours(self.queries, self.new, 10) + 1
        return overlap(np.asarray([[int(hit.id) for hit in row] for row in hits]), best)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("kind", ["parquet", "npy", "lance", "qdrant", "faiss"])
def test_every_kind_of_index_answers_new_queries_and_stays_untouched(kind: str, world: World, tmp_path: Path):
    count = 100
    name = helpers.build(kind, tmp_path, world.old[:count])
    index = LazyIndex(name, world.fitted, embed=world.embed, texts=world.texts, query_map=world.query_map)
    assert len(index) == count
    hits = index.search(world.queries[0], 5, candidates=count)
    assert {hit.by for hit in hits} == {"native"}
    best = neighbours(world.queries[:1], world.new[:count], 5)[0] + 1
    assert [int(hit.id) for hit in hits] == best.tolist()
    translated = index.search(world.queries[1], 5, rescore="translate", candidates=30)
    assert len(translated) == 5


def test_more_candidates_re_embedded_find_more(world: World):
    plain = LazyIndex((world.ids, world.old), world.fitted, query_map=world.query_map)
    lazy = [
        LazyIndex(
            (world.ids, world.old),
            embed=world.embed,
            texts=world.texts,
            query_map=world.query_map,
            candidates=c,
        )
        for c in (20, 50, 150)
    ]
    recalls = [world.recall(index) for index in lazy]
    assert world.recall(plain) < recalls[1] < recalls[2]
    assert recalls[0] < recalls[2]
    assert recalls[2] > 0.85


def test_candidates_of_the_old_encoder_need_no_map(world: World):
    index = LazyIndex((world.ids, world.old), embed=world.embed, texts=world.texts, candidates=100)
    assert world.recall(index, old_queries=world.old_queries) > 0.6
    with pytest.raises(OptionError, match="needs the old encoder's query or a map"):
        index.search(world.queries[0])


def test_a_text_is_embedded_once_and_kept_through_restarts(world: World, tmp_path: Path):
    options = {
        "embed": world.embed,
        "texts": world.texts,
        "query_map": world.query_map,
        "write_back": tmp_path / "new",
    }
    index = LazyIndex((world.ids, world.old), **options)
    first = index.search(world.queries[0])
    count = len(world.embedded)
    assert count == 100
    index.search(world.queries[0])
    assert len(world.embedded) == count
    with (tmp_path / "new" / "vectors.f32").open("ab") as file:
        file.write(b"\0" * 100)  # rows whose ids a kill kept from being written
    with (tmp_path / "new" / "ids.jsonl").open("ab") as file:
        file.write(b"40")  # an id cut off by a kill
    again = LazyIndex((world.ids, world.old), **options)
    assert again.moved == count / 400
    assert [(hit.id, hit.by) for hit in again.search(world.queries[0])] == [(hit.id, hit.by) for hit in first]
    assert len(world.embedded) == count
    again.search(world.queries[1])
    assert len(LazyIndex((world.ids, world.old), **options).native) == len(set(world.embedded))


@pytest.mark.parametrize("kind", ["parquet", "npy", "lance", "qdrant", "faiss"])
def test_new_vectors_are_written_back_beside_the_old_store(kind: str, world: World, tmp_path: Path):
    count = 60
    name = helpers.build(kind, tmp_path, world.old[:count])
    options = {"embed": world.embed, "texts": world.texts, "query_map": world.query_map, "model": "new"}
    index = LazyIndex(name, write_back=True, candidates=20, **options)
    before = [hit.id for hit in index.search(world.queries[0], 5)]
    assert 20 <= len(index.native) < count
    qdrant.close_clients()
    again = LazyIndex(name, write_back=True, candidates=20, **options)
    assert len(again.native) == len(index.native)
    assert [hit.id for hit in again.search(world.queries[0], 5)] == before
    assert len(world.embedded) == len(again.native)
    target = str(tmp_path / {"lance": "whole.lance", "qdrant": "unused"}.get(kind, f"whole.{kind}"))
    steps = list(again.finish(None if kind == "qdrant" else target))
    assert steps[-1].done == count
    assert sorted(world.embedded, key=int) == [str(number + 1) for number in range(count)]
    qdrant.close_clients()
    result = {"qdrant": f"{name}-new"}.get(kind, target)
    source = open_source(result)
    assert source.stamp.model == "new"
    rows = {
        int(first): row
        for part in source.batches(64)
        for first, row in zip(part.ids, part.vectors, strict=True)
    }
    np.testing.assert_allclose(
        np.stack([rows[number + 1] for number in range(count)]), world.new[:count], atol=1e-6
    )
    if kind == "qdrant":
        points, _ = source.client.scroll("rows-new", limit=1)
        assert points[0].payload["title"] == f"title {points[0].id}"
    if kind == "lance":
        assert "title" in open_source(str(tmp_path / "db" / "rows-new.lance")).schema.names
    source.close()


def test_rows_that_have_moved_are_candidates_of_every_query(world: World):
    index = LazyIndex(
        (world.ids, world.old), query_map=world.query_map, translator=world.fitted, candidates=5
    )
    few = world.recall(index)
    index.native.add(world.ids, world.new)
    assert world.recall(index) == 1.0 > few


def test_rows_of_another_model_or_width_are_not_mixed(world: World, tmp_path: Path):
    options = {"embed": world.embed, "texts": world.texts, "write_back": tmp_path / "new"}
    LazyIndex((world.ids, world.old), model="first", **options).move([1, 2])
    with pytest.raises(DataError, match="holds vectors of 'first', not of 'second'"):
        LazyIndex((world.ids, world.old), model="second", **options)
    index = LazyIndex((world.ids, world.old), model="first", **options)
    with pytest.raises(DataError, match="vectors are 3 wide"):
        index.native.add([3], np.ones((1, 3)))
    with pytest.raises(DataError, match="an index in memory has no place"):
        LazyIndex((world.ids, world.old), write_back=True)
    (tmp_path / "new" / "vectors.f32").write_bytes(b"")
    with pytest.raises(DataError, match="names 2 rows and holds 0"):
        LazyIndex((world.ids, world.old), model="first", **options)


def test_mixed_rows_are_ranked_together_better_when_variance_is_restored(world: World):
    predicted = world.fitted.leave_one_out(world.old[:300], world.new[:300])
    restored = restore_variance(world.fitted, predicted, world.new[:300])
    recalls = []
    for translator in (world.fitted, restored):
        index = LazyIndex((world.ids, world.old), translator, query_map=world.query_map, candidates=400)
        index.native.add(world.ids[::2], world.new[::2])
        recalls.append(world.recall(index))
    index.calibrate(world.queries)
    assert recalls[1] >= recalls[0] - 0.005
    assert world.recall(index) >= recalls[0] - 0.005


def test_calibration_brings_translated_scores_to_native_ones(world: World):
    index = LazyIndex((world.ids, world.old), world.fitted, query_map=world.query_map)
    index.native.add(world.ids[300:], world.new[300:])
    slope, offset = index.calibrate(world.queries)
    translated = unit(world.fitted.transform(world.old[300:])) @ world.queries.T
    native = world.new[300:] @ world.queries.T
    np.testing.assert_allclose((slope * translated + offset).mean(), native.mean(), atol=1e-4)
    np.testing.assert_allclose((slope * translated).std(), native.std(), rtol=1e-4)


def test_fused_scores_rank_all_rows(world: World):
    index = LazyIndex((world.ids, world.old), world.fitted)
    hits = index.fused(world.queries[0], world.old_queries[0], 10)
    assert len({hit.id for hit in hits}) == 10
    assert hits[0].score >= hits[-1].score


def test_fused_scores_translate_every_row_once(world: World):
    asked: list[int] = []

    class Counted(Ridge):
        def transform(self, X):  # noqa: N803 - scikit-learn's name
            asked.append(len(X))
            return super().transform(X)

    index = LazyIndex((world.ids, world.old), Counted().fit(world.old[:300], world.new[:300]))
    first = index.fused(world.queries[0], world.old_queries[0], 5)
    index.fused(world.queries[1], world.old_queries[1], 5)
    assert sum(asked) == len(world.ids)
    again = index.fused(world.queries[0], world.old_queries[0], 5)
    assert [hit.id for hit in again] == [hit.id for hit in first]


def test_an_index_says_what_it_is(world: World):
    index = LazyIndex((world.ids, world.old), world.fitted, embed=world.embed, texts=world.texts)
    index.move(world.ids[:100])
    assert repr(index) == "LazyIndex(ArrayIndex, 400 rows, 25% moved, translator=Ridge, embed=a function)"


def test_what_is_missing_is_said(world: World):
    index = LazyIndex((world.ids, world.old), world.fitted)
    with pytest.raises(OptionError, match="pass embed and texts"):
        index.move([1])
    with pytest.raises(DataError, match="move at least 20 rows"):
        index.calibrate(world.queries)
    with pytest.raises(OptionError, match="is no index"):
        LazyIndex(42)
    broken = LazyIndex((world.ids, world.old), embed=world.embed, texts={}, query_map=world.query_map)
    with pytest.raises(DataError, match="has no text of id"):
        broken.search(world.queries[0])


def test_a_map_without_a_way_back_says_what_a_query_needs(world: World):
    kernel = KernelRidge(inverse=False, gamma=0.5, alpha=0.03).fit(world.old[:300], world.new[:300])
    index = LazyIndex((world.ids, world.old), kernel)
    with pytest.raises(OptionError, match="cannot bring queries into the old space"):
        index.search(world.queries[0])
    assert len(index.search(world.queries[0], 5, old_query=world.old_queries[0])) == 5


def test_an_inverted_file_that_finds_few_rows_is_searched_all_the_same(world: World):
    import faiss

    index = faiss.index_factory(24, "IVF40,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(world.old)
    index.add_with_ids(world.old, np.asarray(world.ids) + 5000)
    lazy = LazyIndex(index, world.fitted, query_map=world.query_map)
    for rescore in ("none", "translate"):
        hits = lazy.search(world.queries[0], 300, candidates=300, rescore=rescore)
        assert 0 < len(hits) < 300
        assert all(hit.id > 5000 for hit in hits)
    assert lazy.fused(world.queries[0], world.old_queries[0], 3)


def test_an_open_lance_table_is_an_index(world: World, tmp_path: Path):
    import lancedb

    helpers.build("lance", tmp_path, world.old[:60])
    table = lancedb.connect(str(tmp_path / "db")).open_table("rows")
    hits = LazyIndex(table, world.fitted, query_map=world.query_map).search(world.queries[0], 5)
    assert len(hits) == 5
