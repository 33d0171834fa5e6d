"""Training: the source stays as it was, seeds decide the bytes, and a killed fit ends as an unbroken one."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transship.errors import NumericalError, OutputError
from transship.verbs.adapt import fit
from transship.verbs.adapt.adapted import save_adapted
from transship.verbs.adapt.estimator import Recraft
from transship.verbs.adapt.model.backbone import Backbone

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")


def saved(model: Recraft, folder: Path) -> dict[str, bytes]:
    save_adapted(model.adapted_, folder)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_the_source_is_bit_identical_before_and_after_stage_one(
    quick: dict[str, Any], waves: Any, tiny_bert: Backbone, monkeypatch: pytest.MonkeyPatch
):
    pristine = {name: value.clone() for name, value in tiny_bert.body().named_parameters()}
    seen: dict[str, dict[str, torch.Tensor]] = {}
    stage_two = fit.stage_two

    def watched(runtime: Any, problem: Any, *further: Any, **options: Any) -> Any:
        seen["body"] = {
            name: value.detach().clone() for name, value in problem.network.body.named_parameters()
        }
        seen["head"] = {"weight": problem.known.weight.clone(), "bias": problem.known.bias.clone()}
        return stage_two(runtime, problem, *further, **options)

    monkeypatch.setattr(fit, "stage_two", watched)
    model = Recraft(**quick, method="recraft").fit(*waves)
    assert seen["body"].keys() == pristine.keys()
    for name, value in pristine.items():
        assert torch.equal(value, seen["body"][name]), name
    assert model.source_ is not None
    assert torch.equal(model.source_.weight, seen["head"]["weight"])
    moved = dict(model.adapted_.network.body.named_parameters())
    assert any(not torch.equal(value, moved[name]) for name, value in pristine.items())  # stage 2 did move it


def test_stage_one_brings_features_near_and_lowers_fld(quick: dict[str, Any], waves: Any):
    options = {"fld_steps": 60, "fld_rate": 3e-3}
    model = Recraft(**quick | {"method_options": options}, method="recraft").fit(*waves)
    rows = {f"{row['phase']} {row['step']}": row for row in model.stage1_}
    start, aligned, last = rows["start 0"], rows["fa 60"], model.stage1_[-1]
    assert aligned["w1"] < 0.7 * start["w1"]
    assert last["phase"] == "fld chosen"
    assert last["fld"] < aligned["fld"] - 0.1 * last["entropy_target"]
    considered = [row for row in model.stage1_ if row["phase"] == "fld"]
    assert last["probe_error"] == min(row["probe_error"] for row in considered)


def test_without_progress_of_fld_the_embedder_of_fa_is_kept_and_said_so(quick: dict[str, Any], waves: Any):
    options = {"fa_steps": 8, "fld_steps": 4, "fld_rate": 1e-30}
    with pytest.warns(
        UserWarning, match="FLD did not fall below .* the embedder from before that phase is kept"
    ):
        model = Recraft(**quick | {"method_options": options}, method="recraft").fit(*waves)
    aligned = next(row for row in model.stage1_ if row["phase"] == "fa" and row["step"] == 8)
    assert model.stage1_[-1]["step"] == 0
    assert model.stage1_[-1]["w1"] == aligned["w1"]


def test_collapsed_features_are_warned_about(quick: dict[str, Any], waves: Any):
    still = waves[0] * 1e-3 + np.linspace(-1, 1, 37)  # series that hardly differ have features that hardly do
    with pytest.warns(UserWarning, match="a collapse onto the source's centre"):
        model = Recraft(**quick | {"method_options": {"fa_steps": 2}}, method="fa").fit(still, waves[1])
    assert model.stage1_[-1]["spread"] < 0.5


def test_one_seed_gives_one_folder_to_the_byte_and_another_seed_another(
    quick: dict[str, Any], waves: Any, tmp_path: Path
):
    folders = [
        saved(
            Recraft(**quick | {"method_options": SHORT["recraft"]}, seed=seed).fit(*waves),
            tmp_path / f"{place}",
        )
        for place, seed in enumerate((0, 0, 1))
    ]
    assert folders[0] == folders[1]
    assert folders[0]["model.safetensors"] != folders[2]["model.safetensors"]


SHORT: dict[str, dict[str, Any]] = {
    "recraft": {"fa_steps": 12, "fld_steps": 8},
    "fa-warm": {"fa_steps": 6, "steps": 12},
    "pare": {},
    "nft": {},
    "fpt": {},
}


class Stopped(Exception):  # noqa: N818 - not an error of the program
    """Stands for a kill between two steps."""


@pytest.mark.parametrize(
    ("method", "phase", "step", "more"),
    [
        ("recraft", "fa", 7, {}),
        ("recraft", "fld", 5, {}),
        ("recraft", "stage 2", 5, {}),
        ("recraft", "stage 2", 5, {"predictor": "transport", "freeze_embedder": True, "lora_rank": 2}),
        ("pare", "stage 2", 4, {}),
        ("fa-warm", "warm", 9, {}),
        ("nft", "stage 2", 5, {"optimizer": "sgd", "momentum": 0.99, "learning_rate": 1e-3}),
        ("nft", "stage 2", 5, {"optimizer": "sgd", "momentum": 0.0}),
        ("fpt", "stage 2", 5, {"optimizer": "adam"}),
    ],
)
def test_a_fit_broken_off_in_any_phase_goes_on_to_the_same_bytes(
    quick: dict[str, Any],
    waves: Any,
    tmp_path: Path,
    method: str,
    phase: str,
    step: int,
    more: dict[str, Any],
):
    quick = quick | {"method_options": SHORT[method]} | more
    whole = saved(Recraft(**quick, method=method).fit(*waves), tmp_path / "whole")
    again = quick | {"work": tmp_path / "work", "checkpoint_seconds": 0.0}

    def kill(name: str, done: int, total: int) -> None:
        if name == phase and done == step:
            raise Stopped

    with pytest.raises(Stopped):
        Recraft(**again, method=method).fit(*waves, seen=kill)
    assert (tmp_path / "work" / "state.safetensors").is_file()
    steps: list[tuple[str, int]] = []
    resumed = Recraft(**again, method=method).fit(
        *waves, seen=lambda name, done, total: steps.append((name, done))
    )
    # what there is already, then the step that was broken off, and none before it
    assert steps[:2] == [(phase, step - 1), (phase, step)]
    assert saved(resumed, tmp_path / "resumed") == whole
    assert not (tmp_path / "work" / "state.safetensors").exists()


def test_the_checkpoint_of_another_fit_is_refused(quick: dict[str, Any], waves: Any, tmp_path: Path):
    again = quick | {"work": tmp_path, "checkpoint_seconds": 0.0}

    def kill(name: str, done: int, total: int) -> None:
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        Recraft(**again, method="nft").fit(*waves, seen=kill)
    with pytest.raises(OutputError, match="it holds the checkpoint of another fit"):
        Recraft(**again, method="nft", seed=5).fit(*waves)


def test_accumulated_batches_are_one_larger_batch(quick: dict[str, Any], waves: Any):
    large = quick | {"batch_size": 16, "steps": 3}
    small = quick | {"batch_size": 8, "accumulation": 2, "steps": 3}
    first, second = (Recraft(**each, method="nft").fit(*waves) for each in (large, small))
    np.testing.assert_allclose(first.predict_proba(waves[0]), second.predict_proba(waves[0]), atol=1e-4)


def test_patience_stops_early_and_the_best_validation_is_kept(quick: dict[str, Any], waves: Any):
    noise = np.random.default_rng(1).integers(0, 2, len(waves[0]))
    model = Recraft(**quick | {"steps": 120}, method="nft", patience=2).fit(waves[0], noise)
    values = [row["validation"] for row in model.history_]
    assert len(values) < 20
    assert model.validation_["error"] == pytest.approx(min(values))
    last = Recraft(**quick | {"steps": 24}, method="nft", select=False).fit(waves[0], noise)
    assert last.validation_["error"] == pytest.approx(last.history_[-1]["validation"])


def test_a_loss_that_is_not_finite_is_one_sentence(quick: dict[str, Any], waves: Any):
    with pytest.raises(NumericalError, match=r"the loss is nan in step \d+ of stage 2"):
        Recraft(**quick | {"steps": 60, "clip": float("inf")}, method="nft", learning_rate=1e30).fit(*waves)


def test_the_log_is_written_at_the_start_at_intervals_and_at_the_end(quick: dict[str, Any], waves: Any):
    model = Recraft(**quick, method="fa", log_every=25).fit(*waves)
    assert [(row["phase"], row["step"]) for row in model.stage1_] == [
        ("start", 0),
        ("fa", 25),
        ("fa", 50),
        ("fa", 60),
    ]
    assert json.dumps(model.stage1_)


SCRIPT = """
import sys, numpy as np
from transship.verbs.adapt import Recraft
rows = np.load(sys.argv[1])
model = Recraft(sys.argv[2], method="nft", steps=60, batch_size=8, tokens=8, device="cpu",
                work=sys.argv[3] or None, checkpoint_seconds=float(sys.argv[5]))
model.fit(rows["x"], rows["y"]).save(sys.argv[4])
"""


@pytest.mark.slow
def test_a_process_killed_for_good_is_resumed_to_the_same_bytes(
    waves: Any, tiny_bert_folder: Path, warm: Any, tmp_path: Path
):
    np.savez(tmp_path / "rows.npz", x=waves[0], y=waves[1])

    def start(work: str, out: str, every: float = 60.0) -> Any:
        return warm.start("-c", SCRIPT, tmp_path / "rows.npz", tiny_bert_folder, work, out, every)

    assert start("", str(tmp_path / "whole")).wait() == 0
    broken = start(str(tmp_path / "work"), str(tmp_path / "broken"), every=0.0)
    while not (tmp_path / "work" / "state.safetensors").exists():  # however slow the machine is
        assert broken.poll() is None, "it ended before its first checkpoint"
        time.sleep(0.002)
    broken.kill()
    assert broken.wait() == -signal.SIGKILL
    assert not (tmp_path / "broken").exists()
    assert start(str(tmp_path / "work"), str(tmp_path / "broken")).wait() == 0
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (tmp_path / "broken" / file.name).read_bytes(), file.name
