"""Joining, guarding, forecasting, choosing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import store_helpers as helpers

from transship.errors import DataError, NumericalError, OptionError
from transship.verbs.translate import (
    FitSettings,
    Judgements,
    KernelRidge,
    Procrustes,
    Ridge,
    VectorPairs,
    check_map,
    find_wrong_pairs,
    fit_map,
    fit_pairs,
    load_map,
    measure,
    neighbours,
    out_of_sample,
    restore_variance,
)
from transship.verbs.translate.fit.anchors import compare_ways
from transship.verbs.translate.fit.api import advise
from transship.verbs.translate.fit.pairs import read_pairs
from transship.verbs.translate.fit.quality import MapQuality, map_thresholds
from transship.verbs.translate.fit.steps import MapTrial, choose
from transship.verbs.translate.stores import open_source, qdrant


def spaces(count: int = 700, seed: int = 0, old: int = 24, new: int = 20):
    """Two encoders of the same things: a shared hidden state, bent differently, with noise of their own."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(count, 10))
    mixing = np.random.default_rng(99)
    return tuple(
        unit(
            np.tanh(hidden @ mixing.normal(size=(10, width)) / 2)
            + 0.3 * rng.normal(size=(count, width))
            + 0.2
        )
        for width in (old, new)
    )


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def pairs(count: int = 700, seed: int = 0) -> VectorPairs:
    old, new = spaces(count, seed)
    return VectorPairs([f"id {number}" for number in range(count)], old, new)


def fitted(good: VectorPairs, judgements: Judgements | None = None, **settings):
    return fit_pairs(good, FitSettings(**settings), judgements=judgements)


def trial(name: str, recall: float, translator=None, **scores) -> MapTrial:
    quality = MapQuality(cosine=0.9, twin_recall=0.9, recall=recall, k=10, gallery=100)
    return MapTrial(name, translator or Ridge(), quality, quality, 1.0, **scores)


def write(path: Path, rows: np.ndarray, ids: list) -> str:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    pq.write_table(pa.table({"id": ids, "vector": vectors}), path)
    return str(path)


def join(tmp_path: Path, old, old_ids, new, new_ids, **options) -> VectorPairs:
    first = open_source(write(tmp_path / "old.parquet", old, old_ids))
    second = open_source(write(tmp_path / "new.parquet", new, new_ids))
    return read_pairs(first, second, **options)


def test_stores_are_joined_by_id_whatever_their_order_and_size(tmp_path: Path):
    old, new = spaces(200)
    order = np.random.default_rng(1).permutation(120)
    text = join(tmp_path, old, list(range(200)), new[order], [str(i) for i in order])
    assert (len(text), text.only_old, text.only_new) == (120, 80, 0)
    places = [int(identity) for identity in text.ids]
    np.testing.assert_array_equal(text.old, old[places])
    np.testing.assert_array_equal(text.new, new[places])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("other ids", "none of 100 and 100 ids occur on both sides"),
        ("few", "only 20 ids occur on both sides"),
        ("twice", "the id '7' occurs more than once"),
        ("nan", "vectors hold NaN or infinity, the first is id 5"),
        ("zero", "1 of 100 vectors are all zero, the first is id 5"),
    ],
)
def test_pairs_that_cannot_be_used_are_one_sentence(change: str, message: str, tmp_path: Path):
    old, new = spaces(100)
    ids, others = list(range(100)), list(range(100))
    if change == "other ids":
        others = [f"x{i}" for i in ids]
    if change == "few":
        others = [i + 80 for i in ids]
    if change == "twice":
        others[50] = 7
    if change == "nan":
        new[5, 2] = np.nan
    if change == "zero":
        new[5] = 0
    with pytest.raises(DataError, match=message):
        join(tmp_path, old, ids, new, others)


def test_pairs_are_drawn_by_seed(tmp_path: Path):
    old, new = spaces(200)
    first, second, third = (
        join(tmp_path, old, list(range(200)), new, list(range(200)), most=60, seed=seed).ids
        for seed in (0, 0, 1)
    )
    assert first == second != third


def test_wrong_pairs_are_found_and_right_ones_are_not():
    old, new = spaces(1000)
    predicted = Ridge().fit(old, new).leave_one_out(old, new)
    assert find_wrong_pairs(predicted, new).share < 0.01
    rng = np.random.default_rng(0)
    wrong = rng.choice(1000, 50, replace=False)
    shuffled = new.copy()
    shuffled[wrong] = new[np.roll(wrong, 1)]
    wrong_pairs = find_wrong_pairs(Ridge().fit(old, shuffled).leave_one_out(old, shuffled), shuffled)
    assert 0.04 <= wrong_pairs.share <= 0.06
    assert np.isin(wrong_pairs.wrong, wrong).mean() > 0.8


def test_a_few_wrong_pairs_are_named_and_a_shuffled_list_is_refused():
    good = pairs()
    rng = np.random.default_rng(0)
    wrong = rng.choice(700, 40, replace=False)
    some = good.new.copy()
    some[wrong] = some[np.roll(wrong, 1)]
    with pytest.raises(DataError, match=r"pairs \(\d\.\d%\) do not belong together, such as id \d+"):
        fitted(VectorPairs(good.ids, good.old, some), method="ridge")
    shuffled = VectorPairs(good.ids, good.old, good.new[rng.permutation(700)])
    with pytest.raises(DataError, match="the ids look shuffled"):
        fitted(shuffled, method="ridge")


def test_suspects_carry_the_ids_of_the_wrong_pairs_themselves():
    good = pairs()
    wrong = np.random.default_rng(0).choice(700, 40, replace=False)
    some = good.new.copy()
    some[wrong] = some[np.roll(wrong, 1)]
    result = fitted(VectorPairs(good.ids, good.old, some), method="ridge", force=True)
    named = {name for name, _ in result.suspects}
    assert len(named) > 20
    assert len(named & {f"id {row}" for row in wrong}) > 0.8 * len(named)


def test_the_curve_measures_every_number_of_pairs_on_the_same_rows():
    actual = fitted(pairs(), method="procrustes", curve=True)
    assert [size for _, size, _ in actual.curve] == [100, 200, 500, 630]
    expected = measure(actual.chosen.translator.transform(actual.held.old), actual.held.new).recall
    assert actual.curve[-1][2] == expected


def test_a_map_below_the_gate_is_not_made():
    with pytest.raises(NumericalError, match="below the gate of 99%"):
        fitted(pairs(), method="procrustes", gate=0.99)


def test_force_writes_what_the_gate_refuses():
    assert fitted(pairs(), method="procrustes", gate=0.99, force=True).chosen.name == "procrustes"


def test_every_candidate_is_forecast_and_the_reason_of_the_choice_is_given():
    fit = fitted(pairs(), curve=True)
    assert [each.name for each in fit.trials] == ["procrustes", "ridge", "kernel", "irp"]
    assert (fit.chosen, fit.why) == choose(fit.trials)
    assert 0 < fit.old_alone < 1
    assert {size for _, size, _ in fit.curve} >= {100, 200, 500, 630}
    assert len(fit.advice) == 5
    assert "ranked relevant documents better" in fit.advice[0]


@pytest.mark.parametrize(
    ("recalls", "name", "why"),
    [
        (
            {"procrustes": 0.5, "ridge": 0.6, "kernel": 0.7},
            "kernel",
            "0.700 against 0.600",
        ),
        ({"procrustes": 0.5, "ridge": 0.698, "kernel": 0.7}, "ridge", "within 0.002 of kernel"),
        ({"procrustes": 0.71, "ridge": 0.6, "kernel": 0.7}, "procrustes", "0.710 against 0.700"),
        ({"irp": 0.3}, "irp", "irp was asked for"),
    ],
)
def test_the_best_map_is_chosen_unless_a_simpler_one_is_level(recalls: dict, name: str, why: str):
    chosen, reason = choose([trial(method, recall) for method, recall in recalls.items()])
    assert chosen.name == name
    assert why in reason


def test_the_forecast_is_what_held_out_rows_get():
    for method in ("ridge", "kernel"):
        chosen = fitted(pairs(2000), method=method, held_out=0.3, restore=False).chosen
        assert abs(chosen.forecast.cosine - chosen.held_out.cosine) < 0.01
        assert abs(chosen.forecast.recall - chosen.held_out.recall) < 0.025


def test_forecasts_by_folds_never_see_the_row():
    old, new = spaces(80)
    predicted = out_of_sample(Procrustes(), old, new)
    moved = new.copy()
    moved[3] = -moved[3]
    np.testing.assert_allclose(out_of_sample(Procrustes(), old, moved)[3], predicted[3], atol=1e-6)


def test_variance_is_restored_along_every_axis_of_the_target():
    old, new = spaces(1500)
    for method in (Ridge(), KernelRidge(inverse=False)):
        fitted = method.fit(old[:1000], new[:1000])
        predicted = out_of_sample(fitted, old[:1000], new[:1000])
        restored = restore_variance(fitted, predicted, new[:1000])
        values, axes = np.linalg.eigh(np.cov(new[:1000].T))
        spread = ((restored.transform(old[1000:]) - new.mean(0)) @ axes).std(0)
        np.testing.assert_allclose(spread, np.sqrt(values), rtol=0.2)
        assert (((fitted.transform(old[1000:]) - new.mean(0)) @ axes).std(0) < 0.95 * spread).mean() > 0.7


def test_thresholds_map_to_scores_that_are_as_selective():
    old, new = spaces(400)
    mapped = map_thresholds(old, new, np.asarray([0.3, 0.6]))
    rows, columns = np.triu_indices(400, 1)
    before, after = ((part @ part.T)[rows, columns] for part in (old, new))
    for given, right in zip((0.3, 0.6), mapped, strict=True):
        assert abs((before > given).mean() - (after > right).mean()) < 0.002
    np.testing.assert_allclose(map_thresholds(old, old, np.asarray([0.3, 0.6])), [0.3, 0.6], atol=2e-3)


def test_measures_agree_with_the_obvious_loops():
    old, new = spaces(60)
    moved = unit(new + 0.3 * old[:, :20])
    result = measure(moved, new, k=5)
    shares, twins = [], []
    for row in range(60):
        others = [i for i in range(60) if i != row]
        native = sorted(others, key=lambda i, r=row: -(new[i] @ new[r]))[:5]
        ours = sorted(others, key=lambda i, r=row: -(moved[i] @ new[r]))[:5]
        shares.append(len(set(native) & set(ours)) / 5)
        twins.append(int(np.argmax(moved @ new[row]) == row))
    np.testing.assert_allclose(
        (result.recall, result.twin_recall), (np.mean(shares), np.mean(twins)), atol=1e-9
    )
    np.testing.assert_allclose(result.cosine, (moved * new).sum(1).mean(), atol=1e-6)


def test_judgements_give_ndcg_of_native_old_translated_and_fused_rows():
    good = pairs(600)
    queries_old, queries_new = spaces(40, seed=5)
    top = neighbours(queries_new, good.new, 3)
    grades = {row: {f"id {each}": 1.0 for each in top[row]} for row in range(40)}
    result = fitted(good, method="ridge", judgements=Judgements(queries_new, grades, queries_old))
    assert result.ndcg_native == pytest.approx(1.0)
    assert 0 < result.chosen.ndcg < 1
    assert result.chosen.fused > 0
    assert result.ndcg_old > 0
    assert any("On your own judgements" in line for line in result.advice)


def test_a_query_map_is_measured_with_and_without_the_mean():
    result = fitted(pairs(), method="ridge", direction="query")
    assert result.translator.n_features_in_ == 20
    assert result.translator.n_features_out_ == 24
    assert result.query_side is not None
    assert result.query_side.keep_mean == (
        result.query_side.with_mean[1] >= result.query_side.without_mean[1]
    )


def test_the_shared_space_is_no_candidate():
    with pytest.raises(DataError, match="maps into a shared space"):
        fitted(pairs(), method="relative")
    with pytest.raises(OptionError, match="did you mean 'ridge'"):
        fitted(pairs(), method="rigde")


def test_advice_follows_the_case_and_never_simply_says_translate():
    ridge = trial("ridge", 0.5)
    lazy = advise(ridge, 0.45, 2000, FitSettings(texts=True, old_encoder=True), None)
    assert len(lazy) == 2
    assert "LazyIndex" in lazy[1]
    gone = FitSettings(texts=False, old_encoder=False)
    _, case, bend = advise(ridge, 0.45, 2000, gone, None)
    assert "kernel" in case
    assert "variance restored" in case
    assert "compare with --method kernel" in bend
    assert len(advise(trial("kernel", 0.5, KernelRidge()), 0.45, 2000, gone, None)) == 2
    judged = trial("ridge", 0.5, ndcg=0.5)
    worse = advise(judged, 0.45, 2000, FitSettings(texts=True, old_encoder=True), 0.6)
    assert "the old index as it is ranks better" in worse[1]


def test_ways_of_choosing_anchors_are_compared():
    result = compare_ways(pairs(), 150)
    assert set(result) == {"random", "farthest", "kmeans"}
    assert all(0.2 < recall < 1 for recall in result.values())


def test_one_store_given_twice_is_refused(tmp_path: Path):
    store = write(tmp_path / "old.parquet", spaces(60)[0], list(range(60)))
    with pytest.raises(DataError, match="OLD and NEW are one store; give vectors of two models"):
        fit_map(store, str(tmp_path / "." / "old.parquet"), tmp_path / "map")


def test_fit_and_check_work_on_stores(tmp_path: Path):
    old, new = spaces(900)
    ids = list(range(900))
    first, second = (
        write(tmp_path / "old.parquet", old[:600], ids[:600]),
        write(tmp_path / "new.parquet", new[:600], ids[:600]),
    )
    settings = FitSettings(method="ridge", source_model="a", target_model="b")
    output = fit_map(first, second, tmp_path / "map", settings)
    about = load_map(tmp_path / "map").about
    assert (about["source"], about["target"], about["unit_target"]) == ("a", "b", True)
    assert about["quality"]["kind"] == "document to document"
    others = [
        write(tmp_path / f"{name}2.parquet", rows[600:], ids[600:])
        for name, rows in (("old", old), ("new", new))
    ]
    checked = check_map(tmp_path / "map", *others)
    assert checked.pairs == 300
    assert abs(checked.quality.cosine - output.fit.chosen.forecast.cosine) < 0.03
    with pytest.raises(DataError, match="pairs are 20 and 24 wide"):
        check_map(tmp_path / "map", *others[::-1])
    with pytest.raises(DataError, match="both sides are of 'a'"):
        fit_map(first, second, tmp_path / "map2", FitSettings(source_model="a", target_model="a"))


@pytest.mark.parametrize("kind", ["folder", "hive", "npy", "lance", "qdrant", "faiss"])
def test_pairs_come_from_every_kind_of_store(kind: str, tmp_path: Path):
    old, new = spaces(120)
    source = open_source(helpers.build(kind, tmp_path / "old", old))
    order = np.random.default_rng(0).permutation(120)
    result = read_pairs(
        source, open_source(write(tmp_path / "new.parquet", new[order], [i + 1 for i in order]))
    )
    source.close()
    qdrant.close_clients()
    places = np.asarray([int(identity) - 1 for identity in result.ids])
    assert sorted(places) == list(range(120))
    np.testing.assert_array_equal(result.old, old[places])
    np.testing.assert_array_equal(result.new, new[places])


def test_the_way_back_of_a_kernel_map_is_fitted_when_asked_for():
    plain = fitted(pairs(), method="kernel").translator
    asked = fitted(pairs(), method="kernel", options={"inverse": True}).translator
    with pytest.raises(ValueError, match="fit with inverse=True"):
        plain.inverse_transform(pairs().new)
    assert asked.inverse_transform(pairs().new).shape == pairs().old.shape


@pytest.mark.parametrize("count", [60, 100, 200])
def test_a_weak_map_of_few_right_pairs_is_not_taken_for_wrong_pairing(count: int):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(count, 60)) * np.linspace(1, 0.2, 60)
    old, new = (
        unit(hidden @ rng.normal(size=(60, 128)) + 4.0 * rng.normal(size=(count, 128))) for _ in range(2)
    )
    ids = [f"id {number}" for number in range(count)]
    result = fitted(VectorPairs(ids, old, new), method="ridge", held_out=0.35, gate=0.0)
    # the map is so weak that many partners are not among the nearest 5 %
    assert (result.pairing.ranks > 0.05 * len(result.pairing.ranks)).mean() > 0.01
    with pytest.raises(DataError, match="the ids look shuffled"):
        fitted(VectorPairs(ids, old, new[rng.permutation(count)]), method="ridge", held_out=0.35, gate=0.0)
