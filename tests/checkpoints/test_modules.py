"""The modules of a sentence encoder are weights: opened, merged and written with the model's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import transship as ts
from transship.checkpoints import extract
from transship.checkpoints import open as open_checkpoint
from transship.checkpoints.claims import part_of
from transship.errors import CheckpointError

LINEAR, TIES = "linear", "ties"


def encoder(folder: Path, seed: int, *, dense: bool = True) -> Path:
    """A folder as sentence-transformers writes it; its transformer is two tensors."""

    def values(*shape: int) -> np.ndarray:
        base, change = (np.random.default_rng(number).normal(size=shape) for number in (0, seed))
        return (base + (0.1 * change if seed else 0)).astype("f4")

    modules = ["", "1_Pooling", *(["2_Router"] if dense else [])]
    listed = [{"idx": n, "name": str(n), "path": path, "type": "x"} for n, path in enumerate(modules)]
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    (folder / "1_Pooling/config.json").write_text("{}", encoding="utf-8")
    save_file({"a.weight": values(4, 4)}, folder / "model.safetensors")
    if dense:  # a module may lie in a module
        (folder / "2_Router/query_0_Dense").mkdir(parents=True)
        (folder / "2_Router/router_config.json").write_text("{}", encoding="utf-8")
        weights = {"linear.weight": values(3, 4)}
        save_file(weights, folder / "2_Router/query_0_Dense/model.safetensors")
    return folder


NAME = "2_Router/query_0_Dense/linear.weight"


def merged(tmp_path: Path, method: str, folders: list[Path]) -> Path:
    recipe = {
        "merge_method": method,
        "base_model": str(folders[0]),
        "models": [{"model": str(folder), "parameters": {"weight": 0.5}} for folder in folders[1:]],
        "dtype": "float32",
    }
    if method == LINEAR:
        del recipe["base_model"]
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(recipe), encoding="utf-8")
    ts.merge(file).run(tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("method", [LINEAR, "dare_ties", TIES])
def test_a_module_is_merged_as_the_model_is(tmp_path: Path, method: str):
    folders = [encoder(tmp_path / f"encoder-{seed}", seed) for seed in range(3)]
    out = merged(tmp_path, method, folders)
    assert not (out / "model.safetensors.index.json").exists()
    assert (out / "2_Router/router_config.json").is_file()
    with open_checkpoint(out) as result:
        assert set(result.tensors) == {"a.weight", NAME}
        there = result.read(NAME)
    files = [folder / "2_Router/query_0_Dense/model.safetensors" for folder in (*folders, out)]
    *given, written = (load_file(file)["linear.weight"] for file in files)
    np.testing.assert_array_equal(written, there)
    assert min(abs(written - each).max() for each in given) > 0.005, "it is not that of one model"
    if method == LINEAR:
        np.testing.assert_allclose(written, (given[1] + given[2]) / 2, rtol=1e-6)


def test_a_module_that_one_model_has_is_named_in_the_plan(tmp_path: Path):
    folders = [encoder(tmp_path / f"encoder-{seed}", seed, dense=seed == 0) for seed in range(3)]
    out = merged(tmp_path, TIES, folders)
    merge = ts.merge(tmp_path / "recipe.yaml")
    assert [step.name for step in merge.plan.outcome.copied] == [NAME]
    given, written = (
        load_file(folder / "2_Router/query_0_Dense/model.safetensors")["linear.weight"]
        for folder in (folders[0], out)
    )
    np.testing.assert_array_equal(given, written)


def test_no_adapter_holds_a_module(tmp_path: Path):
    folders = [encoder(tmp_path / f"encoder-{seed}", seed) for seed in range(2)]
    with open_checkpoint(folders[0]) as base, open_checkpoint(folders[1]) as tuned:
        adapter = extract(tuned, base, rank=1)
        with pytest.raises(CheckpointError, match="2_Router/query_0_Dense/ changes, and PEFT has no place"):
            adapter.save(tmp_path / "adapter")


def test_only_a_module_folder_is_a_part():
    assert part_of(NAME) == "2_Router/query_0_Dense/"
    hostile = ("a.weight", "../2_Dense/a", "2_Dense/../../a", "/2_Dense/a", "2_Dense/", "x/2_Dense/a")
    assert [part_of(name) for name in hostile] == [""] * 6
