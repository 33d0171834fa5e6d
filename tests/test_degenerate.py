"""Numbers at the edge: equal, constant, of rank one, huge, tiny; a right answer, or one sentence."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from transship import data
from transship.errors import TransshipError
from transship.geometry import sinkhorn, sinkhorn_divergence
from transship.registry import build_method, method_names

PLAIN = np.random.default_rng(0).standard_normal((60, 5))
ROWS = {
    "equal": np.ones((60, 5)),
    "zero": np.zeros((60, 5)),
    "one constant column": np.c_[PLAIN[:, :4], np.ones(60)],
    "rank one": np.outer(PLAIN[:, 0], np.arange(1.0, 6.0)),
    "one-dimensional": PLAIN[:, :1],
    "1e30": PLAIN * 1e30,
    "1e-30": PLAIN * 1e-30,
    "beyond float16": PLAIN * 6e4,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("name", method_names("translate"))
def test_a_map_is_finite_or_refused(name: str, rows: np.ndarray):
    for old, new in ((rows, PLAIN), (PLAIN, rows), (rows, rows)):
        with warnings.catch_warnings(), contextlib.suppress(TransshipError):
            warnings.simplefilter("ignore")
            moved = build_method("translate", name).fit(old, new, ids=range(60)).transform(old)
            assert np.isfinite(moved).all()


@pytest.mark.parametrize("name", sorted({*method_names("translate")} - {"relative"}))  # it fits nothing
def test_one_row_fits_no_map(name: str):
    with pytest.raises(ValueError, match="1 sample"):  # as scikit-learn's estimators say it
        build_method("translate", name).fit(PLAIN[:1], PLAIN[:1], ids=[0])


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("cost", ["squared_euclidean", "euclidean", "cosine"])
def test_transport_between_a_cloud_and_itself_costs_nothing(cost: str, scale: float):
    cloud = scale * torch.from_numpy(PLAIN[:20])
    divergence = sinkhorn_divergence(cloud, cloud.clone(), cost=cost)
    assert abs(float(divergence)) <= 1e-6 * max(1.0, scale**2)


@pytest.mark.parametrize("cost", ["squared_euclidean", "euclidean", "cosine"])
def test_transport_between_identical_points_is_free_or_refused(cost: str):
    same = torch.ones(8, 3, dtype=torch.float64)
    with contextlib.suppress(TransshipError):
        assert abs(float(sinkhorn(same, same.clone(), cost=cost).value)) < 1e-6


@pytest.mark.parametrize("classes", [1, 2, 10_000])
def test_any_number_of_classes_with_names_of_any_script_is_read(classes: int, tmp_path: Path):
    names = [f"klass-ñ-语-{number}" for number in range(classes)]
    rows = [json.dumps({"text": "some words", "label": name}, ensure_ascii=False) for name in names]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    read = data.load(tmp_path / "rows.jsonl")
    assert len(set(np.asarray(read.labels).tolist())) == classes
    assert set(read.label_names) == set(names)
