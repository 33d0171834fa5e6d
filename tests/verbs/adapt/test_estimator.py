"""`Recraft` as scikit-learn knows estimators, its files, its base, and what it says of raw baselines."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score

import transship
from transship.errors import DataError, OptionError
from transship.verbs.adapt import Recraft, load_adapted
from transship.verbs.adapt.fit import advice, open_accelerator
from transship.verbs.adapt.raw.fit import RawResult, fit_base, fit_raw
from transship.verbs.adapt.rows.metrics import METRICS
from transship.verbs.adapt.rows.targets import Targets

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")


@pytest.fixture
def nft(quick: dict[str, Any]) -> dict[str, Any]:
    return quick | {"method": "nft", "steps": 5}


def test_it_is_found_at_the_top_and_keeps_scikit_learns_conventions(nft: dict[str, Any], waves: Any):
    model = transship.Recraft(**nft)
    assert is_classifier(model)
    assert is_regressor(Recraft(task="regression"))
    twin = clone(Recraft("somewhere", tokens=9))
    assert (twin.backbone, twin.tokens) == ("somewhere", 9)
    scores = cross_val_score(model, *waves, cv=2)
    assert len(scores) == 2
    assert np.isfinite(scores).all()
    fitted = model.fit(*waves)
    assert fitted is model
    assert fitted.classes_.tolist() == ["fast", "noise", "slow"]
    np.testing.assert_allclose(fitted.predict_proba(waves[0]).sum(1), 1.0)
    assert fitted.score(*waves) == np.mean(fitted.predict(waves[0]) == waves[1])


def test_validation_rows_never_train(nft: dict[str, Any], waves: Any):
    model = Recraft(**nft).fit(*waves)
    held = model.validation_index_
    assert 8 <= len(held) <= 16
    assert set(np.asarray(waves[1])[held]) == {"slow", "fast", "noise"}
    changed = waves[0].copy()
    changed[held] = changed[held][::-1]
    other = Recraft(**nft, select=False).fit(changed, waves[1])
    same = Recraft(**nft, select=False).fit(*waves)
    for name, value in same.adapted_.network.state_dict().items():
        assert torch.equal(value, other.adapted_.network.state_dict()[name]), name


def test_a_validation_set_of_ones_own_is_used_as_it_is(nft: dict[str, Any], waves: Any):
    inputs, labels = waves
    model = Recraft(**nft, validation=(inputs[40:], labels[40:])).fit(inputs[:40], labels[:40])
    assert model.adapted_.about["rows"] == {"train": 40, "validation": 20}


@pytest.mark.parametrize("more", [{}, {"base": "rocket"}, {"lora_rank": 2}, {"stem": "multiscale"}])
def test_a_model_comes_back_from_its_folder_as_it_was(
    nft: dict[str, Any], waves: Any, tmp_path: Path, more: dict[str, Any]
):
    model = Recraft(**nft, **more).fit(*waves)
    model.save(tmp_path / "model")
    assert {file.suffix for file in (tmp_path / "model").iterdir()} <= {"", ".json", ".safetensors", ".md"}
    again = load_adapted(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(waves[0]), model.predict_proba(waves[0]))
    np.testing.assert_array_equal(again.predict(waves[0]), model.predict(waves[0]))
    card = json.loads((tmp_path / "model" / "transship.json").read_text())
    assert card["verb"] == "adapt"
    assert {row["role"] for row in card["inputs"]} >= {"backbone", "data"}
    assert "validation error" in card["metrics"]


def test_the_sources_side_comes_back_too(
    quick: dict[str, Any], waves: Any, tmp_path: Path, tiny_bert_folder: Path
):
    short = quick | {"method_options": {"fa_steps": 3, "fld_steps": 3}, "backbone": str(tiny_bert_folder)}
    model = Recraft(**short | {"predictor": "transport", "freeze_embedder": True}).fit(*waves)
    model.save(tmp_path / "model")
    again = load_adapted(tmp_path / "model")
    np.testing.assert_allclose(
        again.source_probabilities(waves[0]), model.source_probabilities(waves[0]), atol=1e-6
    )
    np.testing.assert_allclose(again.embedded(waves[0]), model.embedded(waves[0]), atol=1e-6)
    norms = again.source_gradient_norms(waves[0][:5])
    assert norms.shape == (5,)
    assert (norms > 0).all()
    np.testing.assert_array_equal(again.target_codes(waves[1]), model.target_codes(waves[1]))
    np.testing.assert_allclose(again.adapted_.network.head.plan.sum(1), 1.0, atol=1e-6)


@pytest.mark.parametrize("damage", ["cut", "json", "foreign", "gone"])
def test_a_damaged_folder_is_one_sentence(nft: dict[str, Any], waves: Any, tmp_path: Path, damage: str):
    Recraft(**nft).fit(*waves).save(tmp_path / "model")
    weights, about = tmp_path / "model" / "model.safetensors", tmp_path / "model" / "adapted.json"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif damage == "json":
        about.write_text(about.read_text()[:50])
    elif damage == "foreign":
        about.write_text("{}")
    else:
        about.unlink()
    with pytest.raises(DataError, match=r"cut short|is no adapted model|holds no"):
        load_adapted(tmp_path / "model")


def test_on_a_base_the_network_starts_as_the_base_and_validation_never_gets_worse(
    nft: dict[str, Any], waves: Any
):
    model = Recraft(**nft | {"steps": 10}, base="ridge").fit(*waves)
    first = model.history_[0]
    assert first["step"] == 0
    base = model.adapted_.base
    assert base is not None
    held = model.validation_index_
    scaled = model.adapted_.inputs.transform(waves[0][held])
    alone = np.mean(model.classes_[base.outputs(scaled).argmax(1)] != waves[1][held])
    assert first["validation"] == pytest.approx(alone)
    assert model.validation_["error"] <= alone


def test_the_bases_outputs_on_training_rows_come_from_models_that_did_not_see_them(waves: Any):
    generator = np.random.default_rng(0)
    inputs, truth = generator.normal(size=(60, 1, 200)).astype(np.float32), generator.integers(0, 2, 60)
    base, offsets = fit_base("logistic", inputs, truth, Targets.fit(truth), seed=0)
    own = (base.outputs(inputs).argmax(1) == truth).mean()
    crossed = (offsets.argmax(1) == truth).mean()
    assert own > 0.95  # more features than rows: noise is learned by heart
    assert crossed < 0.75


@pytest.mark.parametrize("most", [40, 30])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_ridge_base_leaves_each_training_row_out_exactly(
    task: str, most: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transship.verbs.adapt.raw.fit.MOST_ROWS", most)
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(40, 1, 60)).astype(np.float32)
    numbers = inputs[:, 0, :3].sum(1) + generator.normal(size=40)
    truth = (numbers > 0).astype(np.int64) if task == "classification" else numbers
    targets = Targets.fit(truth, task=task)
    base, offsets = fit_base("ridge", inputs, truth, targets, seed=0)
    model, flat = base.model, inputs[:, 0].astype(np.float64)
    used = np.arange(40) if model.fitted_on is None else model.fitted_on
    assert len(used) == most
    scaled = (flat - flat[used].mean(0)) / flat[used].std(0)
    wanted = 2.0 * (truth[:, None] == np.arange(2)) - 1.0 if task == "classification" else truth[:, None]
    expected = np.empty_like(wanted)
    for row in range(40):  # at the penalty that all rows chose
        rest = np.setdiff1d(used, [row])
        fitted = Ridge(alpha=model.details["lambda"]).fit(scaled[rest], wanted[rest])
        expected[row] = fitted.predict(scaled[[row]])
    if task == "classification":
        expected = model.sharpness * expected
    else:
        expected = (expected - targets.mean) / targets.std
    np.testing.assert_allclose(offsets.reshape(40, -1), expected.reshape(40, -1), rtol=2e-3, atol=2e-3)


def test_a_base_that_was_fitted_already_is_taken_as_it_is():
    generator = np.random.default_rng(2)
    inputs, truth = generator.normal(size=(30, 1, 20)).astype(np.float32), generator.integers(0, 2, 30)
    fitted = fit_raw("ridge", inputs, truth, task="classification", seed=0)
    base, offsets = fit_base("ridge", inputs, truth, Targets.fit(truth), seed=0, fitted=fitted)
    again, same = fit_base("ridge", inputs, truth, Targets.fit(truth), seed=0)
    assert base.model is fitted
    np.testing.assert_array_equal(offsets, same)
    np.testing.assert_array_equal(base.outputs(inputs), again.outputs(inputs))


def test_without_a_choice_to_make_stage_two_is_validated_at_its_end_only(nft: dict[str, Any], waves: Any):
    last = Recraft(**{**nft, "steps": None, "epochs": 3, "select": False}).fit(*waves)
    every = Recraft(**{**nft, "steps": None, "epochs": 3, "select": False, "patience": 9}).fit(*waves)
    assert [row["epoch"] for row in every.history_] == [1, 2, 3]
    assert [row["epoch"] for row in last.history_] == [3]
    np.testing.assert_array_equal(last.predict_proba(waves[0]), every.predict_proba(waves[0]))


def test_numeric_targets_have_a_base_too(nft: dict[str, Any], waves: Any):
    shifted = np.roll(waves[0], 2, axis=1).astype(float)
    model = Recraft(**nft, task="dense", base="ridge").fit(waves[0], shifted)
    assert model.predict(waves[0]).shape == shifted.shape
    assert model.history_[0]["validation"] < 0.9


def test_baselines_stand_beside_the_model_with_a_word_on_which_to_use(nft: dict[str, Any], waves: Any):
    lines: list[str] = []
    model = Recraft(**nft).fit(*waves, compare=True, tell=lines.append)
    assert {row["name"] for row in model.baselines_} >= {"logistic", "ridge", "rocket", "constant"}
    assert any(line.startswith("raw baseline rocket: validation error") for line in lines)
    assert model.advice_
    assert not Recraft(**nft).fit(*waves).baselines_


def test_advice_needs_a_difference_that_chance_seldom_makes():
    plan: Any = SimpleNamespace(settings=SimpleNamespace(method="nft"), metric=METRICS["error"])
    raw = RawResult("rocket", 0.1, 1.0, None)  # type: ignore[arg-type]
    assert advice(0.02, 400, plan, raw, 0.001).startswith("use the adapted model (nft), not the best raw")
    worse = advice(0.30, 400, plan, raw, 0.001)
    assert worse.startswith(
        "use the raw baseline rocket, not the adapted model (nft): error 0.3000 against 0.1000"
    )
    assert worse.endswith("on the same 400 validation rows (paired test: p = 0.001)")
    assert "show no difference" in advice(0.02, 400, plan, raw, 0.2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"predictor": "transport"}, "label transport needs a source, and nft has none"),
        ({"predictor": "pooled"}, "the pooled head is for dense targets"),
        ({"tokens": 1}, "tokens: it is 1; give a whole number from 2"),
        ({"epochs": 0}, "epochs: it is 0"),
        ({"metric": "mse"}, "'mse' does not apply to classification"),
        ({"metric": "eror"}, "there is no metric 'eror'"),
        ({"loss": "mse"}, "'mse' is no loss of classification"),
        ({"validation": 1.5}, "the share 1.5 is not between 0 and 1"),
        ({"method": "recrafd"}, "there is no method 'recrafd'"),
        ({"method": "recraft", "omega": -1.0}, "ω is -1.0"),
        ({"base": "woods"}, "base: it is 'woods'"),
        ({"device": "abacus"}, "there is no device 'abacus'"),
        ({"device": "meta"}, "this machine has no meta"),
        ({"device": f"cuda:{torch.cuda.device_count()}"}, "this machine has no cuda:"),
        ({"embedder_factor": 0.0}, "embedder_factor: it is 0.0"),
        ({"stem": "forest"}, "stem: it is 'forest'"),
        ({"stem": "kmer"}, "stem: k-mers are made of symbols"),
        ({"optimizer": "lion"}, "optimizer: it is 'lion'; choose adamw, adam, sgd"),
        ({"momentum": 1.0}, "momentum: it is 1.0"),
        ({"task": "ranking"}, "task: it is 'ranking'; choose auto, classification"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(
    nft: dict[str, Any], waves: Any, more: dict[str, Any], message: str
):
    with pytest.raises(OptionError, match=message):
        Recraft(**nft | more).fit(*waves)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.zeros((0, 9)), np.zeros(0), "there are no rows"),
        (np.ones((3, 9)), [0, 1, 0], "3 rows are too few"),
        (np.ones((8, 9)), [0, 1] * 4, "all inputs are the same constant"),
        (np.ones((8, 1)), [0, 1] * 4, "every input has one value only"),
        (np.random.default_rng(0).normal(size=(8, 9)), [0] * 8, "one class leaves nothing to learn"),
        (np.random.default_rng(0).normal(size=(8, 9)), [0, 1] * 3, "there are 8 inputs and 6 targets"),
        (np.full((8, 9), np.nan), [0, 1] * 4, "row 1 holds NaN"),
    ],
)
def test_hostile_rows_are_refused_before_anything_is_opened(inputs: Any, targets: Any, message: str):
    with pytest.raises(DataError, match=message):
        Recraft("no-such-model", method="nft").fit(inputs, np.asarray(targets))


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("kind", ["list", "array", "pandas"])
def test_text_labels_that_are_missing_are_no_class(missing: Any, kind: str):
    labels = ["a", "b", "a", missing, "b", "a", "b", "a"]
    if kind != "list":
        labels = np.array(labels, dtype=object)  # type: ignore[assignment]
    if kind == "pandas":
        labels = pytest.importorskip("pandas").Series(labels)
    inputs = np.random.default_rng(0).normal(size=(8, 9))
    with pytest.raises(DataError, match=r"y: target 4 is missing \(1 such\); fill in or drop those rows"):
        Recraft("no-such-model", method="nft").fit(inputs, labels)


@pytest.mark.parametrize("loss", [None, "nrmse"])
def test_a_target_of_zeros_is_refused_by_a_relative_loss_and_taken_by_mse(
    nft: dict[str, Any], waves: Any, loss: str | None
):
    signals = np.roll(waves[0], 2, axis=1).astype(float) + 3.0
    given = nft | {"task": "dense", "validation": (waves[0][50:], signals[50:])}
    signals[6:8] = [[0.0], [1e-9]]
    message = (
        "target 7 is all zero .2 such rows to train on., and .* divides by its size; choose the loss mse"
    )
    with pytest.raises(DataError, match=message):
        Recraft(**given, loss=loss).fit(waves[0][:50], signals[:50])
    assert Recraft(**given, loss="mse").fit(waves[0][:50], signals[:50]).predict(waves[0][:3]).shape == (
        3,
        37,
    )
    held = nft | {
        "task": "dense",
        "loss": "mse",
        "metric": "relative-l2",
        "validation": (waves[0][:9], signals[:9]),
    }
    with pytest.raises(DataError, match=r"relative-l2 is undefined on the 9 validation rows \(row 7 of"):
        Recraft(**held).fit(waves[0][9:], signals[9:])


def test_targets_of_another_shape_are_one_sentence(nft: dict[str, Any], waves: Any):
    inputs, labels = waves
    numbers = inputs.mean(1).astype(float)
    cases: list[tuple[str, Any, Any, str]] = [
        (
            "regression",
            numbers,
            np.stack([numbers] * 3, 1),
            r"targets are \[3\] and the model was trained on \[\]",
        ),
        (
            "dense",
            inputs + 3.0,
            inputs[:, :20] + 3.0,
            r"targets are \[20\] and the model was trained on \[37\]",
        ),
        ("classification", labels, np.stack([labels] * 2, 1), r"targets of shape \[60, 2\] are no classes"),
    ]
    for task, wanted, other, message in cases:
        model = Recraft(**nft | {"steps": 2}, task=task).fit(inputs, wanted)
        with pytest.raises(DataError, match=message):
            model.evaluate(inputs, other)


@pytest.mark.parametrize("device", ["auto", "cpu", "cpu:0"])
def test_a_device_is_what_torch_knows_by_that_name(device: str):
    from accelerate import Accelerator

    settings = Recraft(device=device)
    settings.checked()
    wanted = torch.device(device) if device != "auto" else Accelerator().device
    assert open_accelerator(settings).device == wanted
    open_accelerator(Recraft(device="cpu", precision="bf16"))  # a second fit may want something else
    assert open_accelerator(settings).mixed_precision == "no"


def test_one_device_of_several_is_not_for_the_processes_of_a_launch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # this machine may have none
    Recraft(device="cuda:1").checked()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(OptionError, match="every process of a launch has a device of its own"):
        Recraft(device="cuda:1").checked()
    Recraft(device="cuda").checked()


def test_more_classes_in_test_than_in_train_are_named(nft: dict[str, Any], waves: Any):
    model = Recraft(**nft).fit(*waves)
    with pytest.raises(DataError, match="class square does not occur in training"):
        model.evaluate(waves[0][:2], np.array(["slow", "square"]))
