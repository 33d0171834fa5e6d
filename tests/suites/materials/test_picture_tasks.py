from __future__ import annotations

from pathlib import Path

import pytest
import torch

from transship_suites.materials import picture_tasks as pictures
from transship_suites.materials.origins import PICTURE_TASKS
from transship_suites.materials.picture_tasks import load_task, pretraining_pictures
from transship_suites.materials.small_vision import load_pictures


@pytest.fixture(autouse=True)
def _small_pool(data_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures, "POOL", {"train": 400, "test": 200})
    yield
    load_task.cache_clear()


@pytest.mark.parametrize("name", PICTURE_TASKS)
def test_every_task_has_grey_pictures_with_all_its_classes(name: str):
    task = load_task(name, 150, 80)
    assert 0 < len(task.test) <= 80 < len(task.train) <= 150
    for rows in (task.train, task.test):
        assert rows.inputs.shape[1:] == (1, 28, 28)
        assert rows.inputs.dtype == torch.float32
        assert 0 <= float(rows.inputs.min()) < float(rows.inputs.max()) <= 1
        assert rows.labels.min() >= 0
        assert rows.labels.max() < PICTURE_TASKS[name]
    assert len(task.train.labels.unique()) >= 0.9 * PICTURE_TASKS[name]
    assert not any(bool((task.train.inputs == row).all((1, 2, 3)).any()) for row in task.test.inputs)


def test_pre_training_sees_half_of_the_classes_and_half_tasks_the_other_half():
    pool = load_pictures("train", 400)
    assert sorted(pretraining_pictures().labels.unique().tolist()) == list(range(10))
    assert len(pretraining_pictures()) == int(((pool.labels % 10) < 5).sum())
    clothes = load_task("clothes-5-9", 40, 20).train
    late = pool.take(pool.labels >= 15)
    assert torch.equal(clothes.inputs, late.inputs[:40])
    assert torch.equal(clothes.labels, late.labels[:40] - 15)


def test_turns_are_told_by_their_number_of_quarter_turns():
    rows = load_task("turns", 30, 20).train
    clothes = load_pictures("train", 400)
    upright = clothes.take(clothes.labels >= 10).inputs
    for place, turn in enumerate(rows.labels.tolist()):
        assert torch.equal(torch.rot90(rows.inputs[place], -turn, (1, 2)), upright[place])


def test_small_digits_keep_their_ink_and_lie_in_different_places():
    small = load_task("small-digits", 30, 20).train
    pool = load_pictures("train", 400)
    digits = pool.take(pool.labels < 10).inputs[:30]
    torch.testing.assert_close(small.inputs.sum((1, 2, 3)), digits.sum((1, 2, 3)) / 4)
    corners = {tuple(row[0].nonzero().min(0).values.tolist()) for row in small.inputs}
    assert len(corners) > 10
