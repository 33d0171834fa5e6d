import numpy as np
import pytest

from transship_suites.materials.grids import grid_task, spectrograms
from transship_suites.materials.origins import PATCHES
from transship_suites.materials.targets import Target, drawn, series_task, waves
from transship_suites.recraft.measure import raw, scored, stage_one


def test_waves_are_of_eight_kinds_with_a_random_phase():
    inputs, labels = waves(800, seed=0)
    assert inputs.shape == (800, 1, 96)
    assert set(labels) == set(range(8))
    for label in range(8):
        mean = inputs[labels == label, 0].mean(0)
        assert np.abs(mean).max() < 0.35  # the phase averages every place away
    # the upper band has more energy above five cycles than the lower one
    power = np.abs(np.fft.rfft(inputs[:, 0])) ** 2
    high = power[:, 6:12].sum(1) > power[:, 1:6].sum(1)
    assert (high == (labels >= 4)).mean() > 0.95


def test_draws_hold_every_class_and_depend_on_the_seed():
    labels = np.array([0] * 200 + [1] * 4 + [2] * 2)
    first, again, other = (drawn(labels, 50, seed=seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert len(set(first.tolist())) == 50
    assert (
        np.bincount(labels[first]).tolist()[1:] == [3, 2] or (np.bincount(labels[first])[1:] >= [3, 2]).all()
    )


@pytest.mark.parametrize("name", ["waves", "advection", "burgers"])
def test_generated_tasks_share_their_test_rows_and_differ_in_training_rows(name: str):
    first, other = (series_task(name, rows=30, test=12, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(first.test[0], other.test[0])
    assert not np.array_equal(first.train[0], other.train[0])
    assert len(first.train[0]) == 24
    assert len(first.validation[0]) == 6
    assert first.settings["patch"] == PATCHES[name]


def test_no_row_is_both_learnt_from_and_chosen_by():
    task = series_task("waves", rows=100, test=20, seed=0)
    seen = {row.tobytes() for row in task.train[0]}
    assert not any(row.tobytes() in seen for part in (task.validation, task.test) for row in part[0])
    assert set(np.unique(task.train[1])) == set(range(8))


def test_real_series_come_with_all_their_classes(data_dir):
    task = series_task("ECG5000", rows=200, test=400, seed=3)
    assert task.train[0].shape == (160, 1, 140)
    assert set(np.unique(task.train[1])) == set(range(5))
    assert len(task.test[1]) == 400


def test_spectrograms_show_the_frequency_of_a_sine():
    places = np.arange(300)
    pictures = spectrograms(np.stack([np.sin(2 * np.pi * places / period) for period in (4, 16)]))
    assert pictures.shape == (2, 1, 28, 28)
    rows = pictures[:, 0].mean(2).argmax(1)
    # frequencies run from 0 to 1/2 in 28 rows
    assert rows[0] == pytest.approx(28 * 2 / 4, abs=1)
    assert rows[1] == pytest.approx(28 * 2 / 16, abs=1)


@pytest.mark.slow
def test_grids_have_channels_and_darcy_its_two_files(data_dir):
    signs = grid_task("signs", rows=200, test=50, seed=0)
    assert signs.train[0].shape == (160, 3, 32, 32)
    assert signs.classes == 43
    darcy = grid_task("darcy", rows=100, test=None, seed=0)
    assert darcy.train[0].shape == (80, 1, 16, 16)
    assert darcy.test[1].shape == (50, 1, 16, 16)


def test_raw_rows_are_scored_on_test_rows():
    task = series_task("waves", rows=120, test=100, seed=0)
    by_name = {each.factors["method"]: each.metrics for each in raw(task, seed=0, kernels=300)}
    assert set(by_name) == {"constant", "logistic", "ridge", "rocket"}
    assert by_name["rocket"]["accuracy"] > 0.5 > by_name["ridge"]["accuracy"]
    fields = series_task("advection", rows=60, test=20, seed=0)
    dense = {each.factors["method"]: each.metrics for each in raw(fields, seed=0, kernels=32)}
    assert dense["ridge"]["nrmse"] < dense["constant"]["nrmse"]


def test_a_perfect_guess_scores_perfectly():
    labels = np.array([0, 1, 2, 1])
    task = Target("toy", "classification", (np.zeros((4, 1, 3)), labels), (labels, labels), (labels, labels))
    result = scored(task, labels, np.eye(3)[labels])
    assert result["accuracy"] == 1.0
    assert result["f1_error"] == 0.0


def test_stage_one_is_told_from_its_first_and_last_row():
    common = {"w1_source": 3.0, "entropy_target": 2.0, "entropy_z": 1.0, "spread": 0.5}
    log = [
        {**common, "w1": 6.0, "fld": 1.8, "held_out_fld": 1.9},
        {**common, "w1": 2.0, "fld": 1.9, "held_out_fld": 1.9},
        {**common, "w1": 3.3, "fld": 1.2, "held_out_fld": 1.7},
    ]
    result = stage_one(log)
    assert result["w1_ratio"] == pytest.approx(1.1)
    assert result["fld_drop"] == pytest.approx(0.3)
