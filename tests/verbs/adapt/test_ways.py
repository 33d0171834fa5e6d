"""The ways of stage 2: which are open, which is taken, and that it is what it would have been if told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transship.registry import build_method
from transship.verbs.adapt.artifact import save_adapted
from transship.verbs.adapt.estimator import Recraft
from transship.verbs.adapt.lora import add_lora, drop_lora
from transship.verbs.adapt.metrics import METRICS
from transship.verbs.adapt.stage_two import Budget
from transship.verbs.adapt.ways import Way, standard_error, ways_of

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")
DEFAULT, TRANSPORT = Way("linear", False), Way("transport", False)
ALL = [DEFAULT, Way("linear", True), TRANSPORT, Way("transport", True)]
# a head that hardly learns has no chance against the table that stage 1 ends with
STILL = {"learning_rate": 1e-7, "steps": 12}
# it leads at first, and is overtaken
SLOW = {"learning_rate": 3e-4, "steps": 72}


@pytest.fixture
def open_(quick: dict[str, Any]) -> dict[str, Any]:
    """Settings that leave stage 2 open and choose by cross-entropy, which tells small sets apart."""
    stage = {"fa_steps": 12, "fld_steps": 40, "fld_rate": 1e-2}
    left_open = {"predictor": "auto", "freeze_embedder": "auto", "metric": "cross-entropy"}
    return quick | left_open | {"method_options": stage}


def weights(model: Recraft) -> dict[str, torch.Tensor]:
    return model.adapted_.network.state_dict()


def assert_same(one: Recraft, other: Recraft) -> None:
    assert weights(one).keys() == weights(other).keys()
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name


@pytest.mark.parametrize(
    ("method", "task", "more", "expected"),
    [
        ("recraft", "classification", {}, ALL),
        ("fa", "classification", {}, ALL),
        ("recraft", "dense", {}, ALL[:2]),
        ("recraft", "classification", {"base": "auto"}, ALL[:2]),
        ("recraft", "classification", {"predictor": "transport"}, ALL[2:]),
        ("recraft", "classification", {"freeze_embedder": False}, [ALL[0], ALL[2]]),
        ("recraft", "classification", {"predictor": "linear", "freeze_embedder": True}, [ALL[1]]),
        ("recraft", "dense", {"predictor": "pooled", "freeze_embedder": False}, [Way("pooled", False)]),
        # without a stage 1, or as their own papers have them: everything is trained under a linear head
        ("nft", "classification", {}, [DEFAULT]),
        ("orca", "classification", {}, [DEFAULT]),
        ("frozen", "classification", {}, [DEFAULT]),
    ],
)
def test_ways_are_open_where_method_and_task_have_a_meaning_for_them(
    method: str, task: str, more: dict[str, Any], expected: list[Way]
):
    found = ways_of(Recraft(method=method, **more), build_method("adapt", method), task)
    assert found == expected


def test_the_standard_error_of_an_error_rate_is_that_of_a_share():
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, 400)
    wrong = generator.random(400) < 0.2
    made = np.where(wrong, (truth + 1) % 3, truth)
    share = wrong.mean()
    found = standard_error(METRICS["error"], truth, made, None, 0)
    assert found == pytest.approx((share * (1 - share) / 400) ** 0.5, rel=0.15)
    assert found == standard_error(METRICS["error"], truth, made, None, 0)
    assert standard_error(METRICS["error"], truth, truth, None, 0) == 0.0


def test_draws_without_a_curve_do_not_count_in_the_standard_error():
    truth = np.array([1, 0, 0, 0, 0, 0])  # many draws have no row of the second class
    scores = np.stack([1 - np.linspace(0.4, 0.9, 6), np.linspace(0.4, 0.9, 6)], 1)
    found = standard_error(METRICS["1-auroc"], truth, scores.argmax(1), scores, 0)
    assert 0 <= found < 1


def test_the_race_is_a_quarter_of_the_passes_and_at_least_one():
    assert Budget(steps=400, batch=16).race(400) == 100
    assert Budget(steps=80, batch=16).race(160) == 20
    assert Budget(steps=30, batch=8).race(80) == 10  # three passes
    assert Budget(steps=4, batch=8).race(80) == 4  # less than one


def test_the_default_way_is_taken_unless_another_leads_and_is_what_it_is_when_told(
    open_: dict[str, Any], rows: Any
):
    steps: list[str] = []
    settings = open_ | {"metric": "error", "learning_rate": 3e-3, "steps": 24}
    model = Recraft(**settings).fit(*rows, seen=lambda name, done, total: steps.append(name))
    assert model.adapted_.about["way"] == DEFAULT.told()
    assert set(model.adapted_.about["ways"]) == {str(way) for way in ALL}
    assert (steps.count("fa"), steps.count("fld")) == (12, 40)  # stage 1 ran once
    assert steps.count("stage 2") == 24
    assert [steps.count(f"stage 2, {way}") for way in ALL[1:]] == [9, 9, 9]
    told = Recraft(**settings | DEFAULT.told()).fit(*rows)
    assert_same(model, told)
    assert [row["validation"] for row in model.history_] == [row["validation"] for row in told.history_]
    assert not told.adapted_.about["ways"]


def test_a_way_that_leads_early_and_at_the_end_is_taken_and_is_what_it_is_when_told(
    open_: dict[str, Any], rows: Any, tmp_path: Path
):
    lines: list[str] = []
    model = Recraft(**open_ | STILL).fit(*rows, tell=lines.append)
    about = model.adapted_.about
    way, tried = Way.of(about["way"]), about["ways"]
    assert way.predictor == "transport"
    default = tried[str(DEFAULT)]
    assert tried[str(way)]["early"] < default["early"] - default["early_error"]
    assert tried[str(way)]["validation"] < default["validation"] - default["error"]
    assert model.validation_["cross-entropy"] == pytest.approx(tried[str(way)]["validation"])
    assert any(f"stage 2: {way} led {DEFAULT} early" in line for line in lines)
    assert_same(model, Recraft(**open_ | STILL | way.told()).fit(*rows))
    model.save(tmp_path / "model")
    from transship.verbs.adapt import load_adapted

    np.testing.assert_array_equal(
        load_adapted(tmp_path / "model").predict_proba(rows[0]), model.predict_proba(rows[0])
    )


def test_a_way_that_leads_early_only_leaves_the_default_as_it_was(open_: dict[str, Any], rows: Any):
    model = Recraft(**open_ | SLOW).fit(*rows)
    about = model.adapted_.about
    early = {name: row["early"] for name, row in about["ways"].items()}
    leader, default = min(early, key=lambda name: early[name]), about["ways"][str(DEFAULT)]
    assert early[leader] < default["early"] - default["early_error"]
    assert "validation" in about["ways"][leader]
    assert about["way"] == DEFAULT.told()
    told = Recraft(**open_ | SLOW | DEFAULT.told()).fit(*rows)
    assert_same(model, told)
    assert [row["step"] for row in model.history_] == [row["step"] for row in told.history_]


class Stopped(Exception):  # noqa: N818 - not an error of the program
    """Stands for a kill between two steps."""


@pytest.mark.parametrize(
    ("place", "step", "rank"),
    [
        ("fld", 30, 0),
        (f"stage 2, {ALL[1]}", 2, 0),
        (f"stage 2, {ALL[3]}", 6, 2),
        ("stage 2", 5, 0),
        (f"stage 2 to the end, {TRANSPORT}", 7, 0),
    ],
)
def test_a_choice_broken_off_anywhere_goes_on_to_the_same_bytes(
    open_: dict[str, Any], rows: Any, tmp_path: Path, place: str, step: int, rank: int
):
    settings = open_ | STILL | {"lora_rank": rank}

    def saved(model: Recraft, folder: Path) -> dict[str, bytes]:
        save_adapted(model.adapted_, folder)
        return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}

    whole = saved(Recraft(**settings).fit(*rows), tmp_path / "whole")
    again = settings | {"work": tmp_path / "work", "checkpoint_seconds": 0.0}

    def kill(name: str, done: int, total: int) -> None:
        if (name, done) == (place, step):
            raise Stopped

    with pytest.raises(Stopped):
        Recraft(**again).fit(*rows, seen=kill)
    steps: list[tuple[str, int]] = []
    resumed = Recraft(**again).fit(*rows, seen=lambda name, done, total: steps.append((name, done)))
    assert steps[0] == (place, step)
    assert saved(resumed, tmp_path / "resumed") == whole


@pytest.mark.filterwarnings("error")
def test_factors_that_are_dropped_leave_the_body_as_it_was(tiny_bert: Any):
    body = tiny_bert.body()
    before = {name: value.clone() for name, value in body.named_parameters()}
    add_lora(body, 2, seed=0)
    with torch.no_grad():
        for name, value in body.named_parameters():
            if "lora_" in name:
                value.fill_(1.0)
    drop_lora(body)
    after = dict(body.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    add_lora(body, 2, seed=0)  # as if there had been none before


def test_on_a_raw_model_the_head_is_linear_and_the_embedder_is_open(open_: dict[str, Any], rows: Any):
    model = Recraft(**open_ | {"steps": 9}, base="ridge").fit(*rows)
    assert set(model.adapted_.about["ways"]) == {str(way) for way in ALL[:2]}
    assert model.history_[0]["step"] == 0
