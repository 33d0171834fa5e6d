"""Judged queries: rankings of the pairs in memory, and of a whole index that is streamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import store_helpers as helpers
from sklearn.metrics import ndcg_score

from transship.verbs.translate import (
    FitSettings,
    JudgedFiles,
    Judgements,
    Ridge,
    check_map,
    fit_map,
    fuse,
    ndcg,
    open_source,
)
from transship.verbs.translate.fit.quality import MapQuality
from transship.verbs.translate.fit.steps import MapTrial, choose
from transship.verbs.translate.maps.vectors import unit_rows

IDS = [f"id {number}" for number in range(600)]


def spaces(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two encoders of the same things, of 24 and 20 features."""
    rng, mixing = np.random.default_rng(seed), np.random.default_rng(99)
    hidden = rng.normal(size=(count, 10))
    old, new = (
        np.tanh(hidden @ mixing.normal(size=(10, width)) / 2) + 0.3 * rng.normal(size=(count, width))
        for width in (24, 20)
    )
    return unit_rows(old), unit_rows(new)


def write(path: Path, rows: np.ndarray, ids: list[str]) -> str:
    pq.write_table(helpers.table(rows, ids), path)
    return str(path)


@pytest.fixture
def judged(tmp_path: Path) -> tuple[Judgements, JudgedFiles]:
    """Forty queries, each with the three documents nearest to it in the new space."""
    new = spaces(600)[1]
    asked_old, asked_new = spaces(40, seed=5)
    near = np.argsort(-(asked_new @ new.T), axis=1)[:, :3]
    grades = {query: {IDS[row]: 1.0 for row in rows} for query, rows in enumerate(near)}
    names = [f"q{number}" for number in range(40)]
    rows = [(names[query], document, 1.0) for query, best in grades.items() for document in best]
    table = dict(zip(("query_id", "doc_id", "score"), zip(*rows, strict=True), strict=True))
    pq.write_table(
        pa.table({name: list(column) for name, column in table.items()}), tmp_path / "judged.parquet"
    )
    files = JudgedFiles(
        str(tmp_path / "judged.parquet"),
        write(tmp_path / "asked-new.parquet", asked_new, names),
        write(tmp_path / "asked-old.parquet", asked_old, names),
    )
    return Judgements(asked_new, grades, asked_old), files


def test_ndcg_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    scores, grades = rng.normal(size=(7, 30)), rng.integers(0, 3, size=(7, 30))
    relevance = {q: {d: float(g) for d, g in enumerate(row) if g} for q, row in enumerate(grades)}
    np.testing.assert_allclose(ndcg(scores, relevance, 10), ndcg_score(grades, scores, k=10))


def test_fused_scores_do_not_depend_on_the_scale_of_either():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(4, 50)), rng.normal(size=(4, 50))
    np.testing.assert_allclose(fuse(first, second), fuse(5 * first + 3, 0.1 * second), atol=1e-12)


def test_a_streamed_index_is_ranked_as_its_rows_in_memory(judged, tmp_path: Path):
    judgements, _ = judged
    old, new = spaces(600)
    fitted = Ridge().fit(old[:300], new[:300])
    source = open_source(write(tmp_path / "old.parquet", old, IDS))
    streamed = Judgements(judgements.new, judgements.grades, judgements.old, corpus=source)
    moved = fitted.transform(old)

    def translate(ids, rows):
        return fitted.transform(rows)

    for by_old, rows in ((False, None), (True, old)):
        exact = judgements.ndcg(IDS, moved, rows, 10)
        np.testing.assert_allclose(streamed.search(translate, 10, by_old=by_old), exact, atol=1e-6)
    exact = judgements.ndcg(IDS, None, old, 10)
    np.testing.assert_allclose(streamed.search(None, 10, by_old=True), exact, atol=1e-6)
    assert streamed.missing() == 0


def test_judged_queries_search_the_whole_old_index(judged, tmp_path: Path):
    judgements, files = judged
    old, new = spaces(600)
    first = write(tmp_path / "old.parquet", old, IDS)
    second = write(tmp_path / "new.parquet", new[:300], IDS[:300])
    fitted = fit_map(first, second, tmp_path / "map", FitSettings(method="ridge", gate=0.0), judged=files)
    judged_figures = fitted.summary()["ndcg"]
    assert judged_figures["over"] == "all 600 rows of the old index"
    assert judged_figures["native"] is None  # half of the documents have no new vectors
    assert judged_figures["old"] == pytest.approx(judgements.ndcg(IDS, None, old, 10))
    among_pairs = judgements.ndcg(IDS[:300], fitted.fit.translator.transform(old[:300]), None, 10)
    assert fitted.fit.chosen.ndcg < among_pairs


def test_documents_that_the_old_index_lacks_are_counted(judged, tmp_path: Path):
    _, files = judged
    old, new = spaces(600)
    first = write(tmp_path / "old.parquet", old[:400], IDS[:400])
    second = write(tmp_path / "new.parquet", new, IDS)
    fitted = fit_map(first, second, tmp_path / "map", FitSettings(method="ridge", gate=0.0), judged=files)
    assert "all 400 rows of the old index (" in fitted.fit.judged_over
    assert fitted.summary()["ndcg"]["native"] is not None


def test_auto_takes_ndcg_where_judgements_are_given():
    def trial(name: str, recall: float, judged: float | None) -> MapTrial:
        quality = MapQuality(cosine=0.9, twin_recall=0.9, recall=recall, k=10, gallery=100)
        return MapTrial(name, Ridge(), quality, quality, 1.0, ndcg=judged)

    chosen, why = choose([trial("ridge", 0.5, 0.4), trial("kernel", 0.6, 0.3)])
    assert chosen.name == "ridge"
    assert why == "ridge has the best nDCG on your judgements, 0.400 against 0.300"
    assert choose([trial("ridge", 0.5, None), trial("kernel", 0.6, None)])[0].name == "kernel"


def test_a_check_on_known_pairs_is_flagged_and_on_others_leaves_them_out(tmp_path: Path):
    old, new = spaces(600)
    first = write(tmp_path / "old.parquet", old[:400], IDS[:400])
    second = write(tmp_path / "new.parquet", new[:400], IDS[:400])
    fit_map(first, second, tmp_path / "map", FitSettings(method="ridge", gate=0.0))
    known = check_map(tmp_path / "map", first, second)
    assert (known.pairs, known.known, known.left_out) == (400, 400, 0)
    assert any("looks better than it is" in str(block) for block in known.page().sections[0].blocks)
    every = write(tmp_path / "all-old.parquet", old, IDS), write(tmp_path / "all-new.parquet", new, IDS)
    others = check_map(tmp_path / "map", *every)
    assert (others.pairs, others.known, others.left_out) == (200, 0, 400)
    assert others.quality.cosine < known.quality.cosine
    drawn = check_map(tmp_path / "map", *every, most=80)
    assert (drawn.pairs, drawn.left_out) == (80, 400)
