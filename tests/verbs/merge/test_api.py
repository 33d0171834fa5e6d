"""Whole recipes on toys: what a plan says, what a merge makes, and that neither depends on anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transship import checkpoints
from transship.errors import CheckpointError, OptionError
from transship.report import terminal
from transship.report.json import document as json_document
from transship.verbs.merge.api import merge
from transship.verbs.merge.plan import plan
from transship.verbs.merge.recipe.plan.merge import MergePlan

Make = Callable[..., None]


def recipe(
    method: str = "linear", *, models: str = "ab", base: str | None = None, **more: Any
) -> dict[str, Any]:
    fields: dict[str, Any] = {"merge_method": method, "models": [{"model": name} for name in models], **more}
    if base is not None:
        fields["base_model"] = base
    if method in ("linear", "ties", "task_arithmetic", "dare_linear") and "parameters" not in more:
        fields["parameters"] = {"weight": 0.5}
    return fields


def test_a_merge_is_the_dense_formula_on_every_tensor_and_rounds_once(toys: Make, tmp_path: Path):
    out = merge(recipe(out_dtype="bfloat16")).save(tmp_path / "out")
    with checkpoints.open("a") as a, checkpoints.open("b") as b, checkpoints.open(out) as checkpoint:
        assert set(checkpoint.tensors) == set(a.tensors)
        for name in a.tensors:
            expected = (a.read(name) * np.float32(0.5) + b.read(name) * np.float32(0.5)) / np.float32(1.0)
            assert checkpoint.info(name).dtype == "bfloat16"
            rounded = checkpoints.widen(checkpoints.narrow(expected, "bfloat16"), "bfloat16")
            np.testing.assert_array_equal(checkpoint.read(name).ravel(), rounded)


def test_the_same_recipe_gives_the_same_bytes_and_another_seed_others(toys: Make, tmp_path: Path):
    given = recipe("dare_linear", base="base", parameters={"weight": 0.5, "density": 0.5})
    first, second = (merge(given).save(tmp_path / name) / "model.safetensors" for name in ("x", "y"))
    other = merge(given, seed=1).save(tmp_path / "z") / "model.safetensors"
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()


def test_a_tensor_does_not_depend_on_what_was_made_before(toys: Make):
    given = recipe("ties", base="base", parameters={"weight": 0.5, "density": 0.5, "trim": "global"})
    whole, single = merge(given), merge(given)
    assert isinstance(whole.plan, MergePlan)
    all_in_order = {step.name: whole.tensor(step.name) for step in whole.plan.steps}
    np.testing.assert_array_equal(single.tensor("layers.1.mlp.weight"), all_in_order["layers.1.mlp.weight"])


def test_parameters_take_their_place_in_depth_and_the_head_of_the_list_around_the_layers(toys: Make):
    result = plan(recipe("task_arithmetic", base="base", parameters={"weight": [0.0, 1.0]}))
    assert isinstance(result, MergePlan)
    weights = {step.name: step.values["weight"][0] for step in result.steps}
    assert weights["layers.0.mlp.weight"] == 0.0
    assert weights["layers.1.mlp.weight"] == 1.0
    assert weights["embed.weight"] == weights["norm.weight"] == 0.0


def test_filters_see_the_input_name_for_model_parameters_and_the_output_name_for_shared_ones(toys: Make):
    text = """
merge_method: linear
slices:
  - sources:
      - {model: a, layer_range: [1, 2], parameters: {weight: [{filter: layers.1., value: 0.25}, {value: 9}]}}
      - {model: b, layer_range: [0, 1], parameters: {weight: [{filter: layers.0., value: 0.5}, {value: 9}]}}
parameters:
  normalize: [{filter: layers.0., value: false}]
"""
    result = plan(text)
    assert isinstance(result, MergePlan)
    step = next(step for step in result.steps if step.name == "layers.0.mlp.weight")
    assert step.values["weight"] == (0.25, 0.5)
    assert step.method is not None
    assert step.method.normalize is False  # type: ignore[attr-defined]
    assert result.config["num_hidden_layers"] == 1


def test_a_plan_reads_no_weights_and_names_every_tensor(toys: Make, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(checkpoints.WeightFile, "raw", refuse)
    result = plan(recipe("ties", base="base"))
    assert isinstance(result, MergePlan)
    data = json_document(result.page())
    assert {tensor["name"] for tensor in data["tensors"]} == {"embed.weight", "norm.weight"} | {
        f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("attn", "mlp")
    }
    assert data["bytes_written"] == 4 * (9 * 6 + 6 + 4 * 36)
    assert data["bytes_read"] == 3 * data["bytes_written"]
    assert result.page().title == "ties of a, b, base"


def test_the_config_comes_from_the_base_or_else_from_the_first_model(toys: Make, safetensors_models: Make):
    for name in ("base", "a"):
        with checkpoints.open(name) as checkpoint:
            arrays = {key: np.array(checkpoint.read(key)) for key in checkpoint.tensors}
        safetensors_models(name, arrays, num_hidden_layers=2, mark=name)
    assert plan(recipe(models="ab")).config["mark"] == "a"  # type: ignore[union-attr]
    assert plan(recipe("ties", base="base")).config["mark"] == "base"  # type: ignore[union-attr]


def test_mixed_dtypes_are_promoted(toys: Make, layered: Any, safetensors_models: Make, tmp_path: Path):
    arrays = layered(0)
    safetensors_models("half", arrays, "float16", num_hidden_layers=2)
    safetensors_models("brain", arrays, "bfloat16", num_hidden_layers=2)
    given = {"merge_method": "linear", "parameters": {"weight": 1}}
    for names, dtype in (
        (("half", "brain"), "float32"),
        (("half", "half"), "float16"),
        (("half", "a"), "float32"),
    ):
        result = plan({**given, "models": [{"model": name} for name in names]})
        assert {step.dtype for step in result.steps} == {dtype}  # type: ignore[union-attr]


def test_integers_are_copied_when_they_agree(
    toys: Make, layered: Any, safetensors_models: Make, tmp_path: Path
):
    for name, last in (("x", 3), ("y", 3), ("z", 4)):
        arrays = layered(0) | {"position_ids": np.array([0, 1, 2, last], np.int64)}
        safetensors_models(name, arrays, num_hidden_layers=2)
    out = merge(recipe(models="xy")).save(tmp_path / "out")
    with checkpoints.open(out) as checkpoint:
        assert checkpoint.read("position_ids").tolist() == [0, 1, 2, 3]
    with pytest.raises(CheckpointError, match="hold different integers"):
        merge(recipe(models="xz")).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_recipes_use_one_another(toys: Make, tmp_path: Path):
    Path("inner.yaml").write_text(json.dumps(recipe(models="ab")))
    outer = {
        "merge_method": "linear",
        "models": [{"model": "inner.yaml"}, {"model": "a"}],
        "parameters": {"weight": 1},
    }
    Path("outer.yaml").write_text(json.dumps(outer))
    tensor = merge(Path("outer.yaml")).tensor("embed.weight")
    with checkpoints.open("a") as a, checkpoints.open("b") as b:
        expected = 0.75 * a.read("embed.weight") + 0.25 * b.read("embed.weight")
    np.testing.assert_allclose(tensor, expected, rtol=1e-6)
    several = (
        json.dumps(recipe(models="ab", name="half"))
        + "\n---\n"
        + json.dumps(outer).replace("inner.yaml", "half")
    )
    Path("several.yaml").write_text(several)
    np.testing.assert_array_equal(merge("several.yaml").tensor("embed.weight"), tensor)


def test_tensors_that_not_all_models_have_are_never_dropped_silently(
    toys: Make, layered: Any, safetensors_models: Make, tmp_path: Path
):
    tower = np.ones((2, 3), np.float32)
    safetensors_models(
        "seeing", layered(3, noise_of=layered(0)) | {"vision.weight": tower}, num_hidden_layers=2
    )
    first = {
        "merge_method": "linear",
        "parameters": {"weight": 1},
        "models": [{"model": "seeing"}, {"model": "a"}],
    }
    out = merge(first).save(tmp_path / "out")
    with checkpoints.open(out) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read("vision.weight"), tower)
    assert "vision.weight  copied from seeing: not present in a" in terminal.render(plan(first).page())
    second = {**first, "models": first["models"][::-1]}
    with pytest.raises(CheckpointError, match="only seeing has it, and a has not; set extra_tensors: keep"):
        merge(second)
    assert "vision.weight" in {step.name for step in plan({**second, "extra_tensors": "keep"}).steps}  # type: ignore[union-attr]
    assert plan({**second, "extra_tensors": "drop"}).facts["dropped"] == ["vision.weight (not in a)"]  # type: ignore[union-attr]
    with pytest.raises(CheckpointError, match="only seeing has it"):
        merge({**first, "extra_tensors": "error"})


def test_mergekit_arithmetic_rounds_every_step_and_is_refused_where_it_is_not_there(
    toys: Make, safetensors_models: Make
):
    for name in ("base", "a", "b"):
        with checkpoints.open(name) as checkpoint:
            arrays = {key: np.array(checkpoint.read(key)) for key in checkpoint.tensors}
        safetensors_models(name, arrays, "bfloat16", num_hidden_layers=2)
    given = recipe("task_arithmetic", base="base", parameters={"weight": 0.3}, dtype="bfloat16")
    exact, parity = (
        merge(given).tensor("embed.weight"),
        merge({**given, "arithmetic": "mergekit"}).tensor("embed.weight"),
    )

    def rounded(values: np.ndarray) -> np.ndarray:
        return checkpoints.widen(checkpoints.narrow(values, "bfloat16"), "bfloat16").reshape(values.shape)

    with checkpoints.open("base") as base, checkpoints.open("a") as a, checkpoints.open("b") as b:
        origin = base.read("embed.weight")
        weight = rounded(np.array([0.3], np.float32))
        parts = [rounded(weight * rounded(each.read("embed.weight") - origin)) for each in (a, b)]
    np.testing.assert_array_equal(parity, rounded(origin + rounded(parts[0] + parts[1])))
    assert not np.array_equal(exact, parity)
    with pytest.raises(OptionError, match="arithmetic: mergekit in bfloat16 is not there for ram"):
        merge(recipe("ram", base="base", arithmetic="mergekit")).tensor("embed.weight")
    wide = recipe("ram", base="base", dtype="float32")  # nothing to round: the same with it
    np.testing.assert_array_equal(
        merge({**wide, "arithmetic": "mergekit"}).tensor("embed.weight"), merge(wide).tensor("embed.weight")
    )


def test_memory_does_not_grow_with_the_model(safetensors_models: Make, tmp_path: Path):
    """Thirty more tensors of 1 MB each: what is allocated at a time stays the same."""
    import tracemalloc

    peaks = []
    for count in (2, 32):
        arrays = {f"part-{number}.weight": np.ones((512, 512), np.float32) for number in range(count)}
        for name in "ab":
            safetensors_models(name, arrays)
        del arrays
        tracemalloc.start()
        merge(recipe()).save(tmp_path / f"out-{count}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000


def test_the_card_names_the_inputs_and_their_fingerprints(toys: Make, tmp_path: Path):
    out = merge(recipe("ties", base="base")).save(tmp_path / "out")
    provenance = json.loads((out / "transship.json").read_text())
    assert [row["name"] for row in provenance["inputs"]] == ["a", "b", "base"]
    assert len({row["sha256"] for row in provenance["inputs"]}) == 3
    assert "ties" in provenance["recipe"]


def test_the_report_shows_every_tensor(toys: Make, tmp_path: Path):
    merged = merge(recipe())
    page = merged.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "layers.1.mlp.weight" in page
    with pytest.raises(OptionError, match=r"may take 1\.0 kB"):
        merged.check(memory=1000)


def test_a_merge_prints_in_a_line(toys: Make, tmp_path: Path):
    given = merge(recipe())
    assert repr(given) == "Merge(method='linear', models=['a', 'b'])"
    assert (
        repr(given.run(tmp_path / "out"))
        == f"Merged(method='linear', models=['a', 'b'], folder='{tmp_path / 'out'}')"
    )
