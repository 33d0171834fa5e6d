"""FAISS: an index of any kind stays one, and what is approximate is said."""

from __future__ import annotations

import re
from pathlib import Path

import faiss
import numpy as np
import pytest
import store_helpers as helpers

from transship.errors import DataError
from transship.verbs.translate.apply import apply_map, plan_apply
from transship.verbs.translate.stores.faiss_file import KeptRows, index_kind

COUNT = 1500


def write(path: Path, kind: str, *, own_ids: bool = False) -> str:
    rows, ids = helpers.make_rows(COUNT), np.arange(COUNT) + 7000
    index = faiss.index_factory(6, kind, faiss.METRIC_L2)
    if not own_ids:
        index = faiss.IndexIDMap2(index)
    index.train(rows)
    index.add_with_ids(rows, ids)
    if (inverted := faiss.try_extract_index_ivf(index)) is not None:
        inverted.nprobe = 5
    faiss.write_index(index, str(path))
    return str(path)


@pytest.mark.parametrize("own_ids", [True, False])
@pytest.mark.parametrize("kind", ["IVF8,PQ3x4", "IVF8,Flat", "IVF8,SQ8"])
def test_an_inverted_index_stays_one(kind: str, own_ids: bool, saved, tmp_path: Path):
    source = write(tmp_path / "old.faiss", kind, own_ids=own_ids)
    saved.translator.coef_ = saved.translator.coef_[:, :3]  # three features, into which three codes fit
    saved.translator.intercept_ = saved.translator.intercept_[:3]
    saved.translator.n_features_out_ = 3
    assert list(apply_map(saved, source, str(tmp_path / "new.faiss")))[-1].done == COUNT
    index = faiss.read_index(str(tmp_path / "new.faiss"))
    assert index_kind(index) == kind
    assert (index.d, index.ntotal, index.metric_type) == (3, COUNT, faiss.METRIC_L2)
    assert faiss.try_extract_index_ivf(index).nprobe == 5
    kept = KeptRows(index)
    assert sorted(kept.ids) == list(range(7000, 7000 + COUNT))
    moved = saved.translator.transform(helpers.make_rows(COUNT))
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    rows = kept.at(np.argsort(kept.ids))
    assert (rows * moved).sum(1).mean() > (0.999 if "Flat" in kind else 0.8)


def test_a_plan_says_which_rows_are_approximate(saved, tmp_path: Path):
    exact = plan_apply(saved, write(tmp_path / "flat.faiss", "Flat"))
    assert exact.note == ""
    coded = plan_apply(saved, write(tmp_path / "coded.faiss", "IVF8,PQ3x4"))
    assert "as the index keeps them, approximately (IVF8,PQ3x4)" in str(coded)


def test_another_kind_is_made_when_it_is_named(saved, tmp_path: Path):
    source = write(tmp_path / "old.faiss", "IVF8,PQ3x4")
    list(apply_map(saved, source, f"{tmp_path / 'new.faiss'}#HNSW8"))
    assert index_kind(faiss.read_index(str(tmp_path / "new.faiss"))) == "HNSW8"
    with pytest.raises(DataError, match=re.escape("FAISS makes no index 'Nonsense' of vectors 5 wide")):
        list(apply_map(saved, source, f"{tmp_path / 'other.faiss'}#Nonsense"))
    with pytest.raises(DataError, match=re.escape("1,500 rows are too few for the 4,096 lists")):
        list(apply_map(saved, source, f"{tmp_path / 'other.faiss'}#IVF4096,Flat"))
    # three codes do not fit five features
    with pytest.raises(DataError, match=re.escape("FAISS makes no index 'IVF8,PQ3x4' of vectors 5 wide")):
        list(apply_map(saved, source, str(tmp_path / "other.faiss")))
