"""The demo trains little, uses all four verbs, and reuses what it trained."""

from collections import Counter

import numpy as np
import pytest

from transship.data import load
from transship_suites.demo import models
from transship_suites.demo.models import LIBRARIES, OF_EACH, descriptions
from transship_suites.demo.steps import Demo, Size, VerbResult, signals, story, write

TINY = Size(pretrain=30, tune=15, adapt=1)


def test_the_same_seed_gives_the_same_waves_of_four_shapes():
    waves, shapes = signals(40, seed=3)
    again, _ = signals(40, seed=3)
    assert waves.shape == (40, 1, 8, 8)
    assert set(shapes) == {0, 1, 2, 3}
    assert np.array_equal(waves, again)


def test_turning_four_times_gives_the_digits_back():
    digits = models.load_digits("test")
    turned = digits
    for _ in range(4):
        turned = turned.changed(models.turned)
    assert np.array_equal(turned.images, digits.images)
    assert not np.array_equal(digits.changed(models.turned).images, digits.images)


def test_a_pair_is_two_digits_side_by_side_and_odd_where_one_of_them_is():
    digits = models.load_digits("test")
    images, odd = models.pairs(digits, 200, seed=3)
    assert images.shape == (200, 1, 8, 16)
    assert images.dtype == np.float32
    number = {image.tobytes(): label for image, label in zip(digits.images, digits.labels, strict=True)}
    sums = [
        number[np.ascontiguousarray(image[:, :, :8]).tobytes()]
        + number[np.ascontiguousarray(image[:, :, 8:]).tobytes()]
        for image in images
    ]
    assert np.array_equal(odd, np.array(sums) % 2)
    assert 0.3 < odd.mean() < 0.7


def test_without_the_packages_of_encoders_translate_takes_the_digits(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "encoders", list)
    step = Demo(tmp_path, TINY).translate()
    assert step.unit == "accuracy on digits"
    assert step.ours in step.figures


def test_every_library_gives_as_many_descriptions_each_once():
    rows = descriptions()
    assert Counter(row["label"] for row in rows) == dict.fromkeys(LIBRARIES, OF_EACH)
    assert len({row["text"] for row in rows}) == len({row["id"] for row in rows}) == len(rows)
    assert all(" " in row["text"] for row in rows)


def test_a_verb_is_held_against_its_best_baseline_also_at_a_glance():
    figures = {"untouched": 0.1, "head alone": 0.8, "ours": 0.7, "what it came from": 0.9}
    step = VerbResult("transport", "A story.", "accuracy", figures, "ours", ("what it came from",))
    assert step.baseline == "head alone"
    digits = models.load_digits("test")
    (glance, *_) = story({"narrow": 0.9}, [step], digits, digits).sections
    (shown,) = glance.blocks[-1].figures
    assert (shown.value, shown.note) == ("70.0%", "head alone: 80.0%")


@pytest.mark.slow
def test_every_verb_gives_its_figures_offline_and_a_second_run_trains_nothing(tmp_path, offline):
    demo = Demo(tmp_path, TINY)
    steps = [demo.transport(), demo.merge(), demo.translate(), demo.adapt()]
    assert [step.verb for step in steps] == ["transport", "merge", "translate", "adapt"]
    for step in steps:
        assert {step.ours, step.baseline, *step.references} <= step.figures.keys()
        assert step.baseline not in (step.ours, *step.references)
        assert all(0 <= value <= 1 for value in step.figures.values())
        assert step.baseline in step.line()
    written = write(story(demo.bases(), steps, demo.train, demo.test), tmp_path)
    assert "the same digits rotated by 90°" in written.read_text()
    left = load(str(tmp_path / "data" / "turned.npz"), "array")
    assert len(left.split("train")) == len(demo.train)
    assert np.array_equal(np.asarray(left.split("test").inputs), models.turned(demo.test.images))

    trained = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")}
    assert len(trained) >= 7
    again = Demo(tmp_path, TINY)
    assert again.merge().figures == steps[1].figures  # of all four, what asks for most of the trained models
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")} == trained
