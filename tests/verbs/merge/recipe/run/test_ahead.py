"""`--jobs`: the same bytes for any number of threads, within the memory that was allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transship import checkpoints
from transship.checkpoints.write import TensorPlan, write_file
from transship.errors import NumericalError, OptionError
from transship.registry import method_class, method_names
from transship.verbs.merge import protocol
from transship.verbs.merge.api import ROOM, merge, threads
from transship.verbs.merge.methods.dare_linear import DareLinear
from transship.verbs.merge.methods.della_linear import DellaLinear
from transship.verbs.merge.plan import plan
from transship.verbs.merge.recipe.plan.merge import MergePlan
from transship.verbs.merge.recipe.plan.models import sampled_fingerprint
from transship.verbs.merge.recipe.run.ahead import Ahead
from transship.verbs.merge.settings import RunSettings

Make = Callable[..., None]
RECIPES: dict[str, dict[str, Any]] = {
    "linear": {"merge_method": "linear", "parameters": {"weight": 0.5}, "out_dtype": "bfloat16"},
    "ties-global": {
        "merge_method": "ties",
        "base_model": "base",
        "parameters": {"weight": 0.5, "density": 0.4, "trim": "global"},
    },
    "dare": {
        "merge_method": "dare_ties",
        "base_model": "base",
        "parameters": {"weight": 0.5, "density": 0.5},
    },
    "model-stock": {"merge_method": "model_stock", "base_model": "base"},
}


# every method that draws: the draws go by the tensor's name, not by who makes it or when
DRAWING = ("dare_linear", "dare_ties", "della", "della_linear")


def weights(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("name", RECIPES)
def test_the_bytes_are_the_same_for_any_number_of_threads(toys: Make, tmp_path: Path, name: str):
    recipe = RECIPES[name] | {"models": [{"model": "a"}, {"model": "b"}]}
    expected = weights(merge(recipe).save(tmp_path / "one"))
    for jobs in (2, 3, 8):
        assert weights(merge(recipe).save(tmp_path / f"out{jobs}", jobs=jobs)) == expected


@pytest.mark.parametrize("name", DRAWING)
def test_methods_that_draw_draw_the_same_for_any_jobs_and_memory(toys: Make, tmp_path: Path, name: str):
    recipe: dict[str, Any] = {
        "merge_method": name,
        "base_model": "base",
        "models": [{"model": "a"}, {"model": "b"}],
        "parameters": {"weight": 0.6, "density": 0.5, "epsilon": 0.1},
    }
    if name.startswith("dare"):
        del recipe["parameters"]["epsilon"]
    expected = weights(merge(recipe, seed=3).save(tmp_path / "one"))
    merged = merge(recipe, seed=3)
    assert isinstance(merged.plan, MergePlan)
    # no limit; room for two threads and nothing that waits; room for one thread only
    tight = merged.plan.memory_of(2) + merged.plan.largest_output
    for jobs, memory in ((2, None), (5, None), (5, tight), (5, merged.plan.peak_memory)):
        out = tmp_path / f"{jobs}-{memory}"
        assert weights(merge(recipe, seed=3).save(out, jobs=jobs, memory=memory)) == expected
    assert weights(merge(recipe, seed=4).save(tmp_path / "other", jobs=5)) != expected


def test_all_methods_that_draw_are_among_them():
    """Only the two sparsifiers by chance draw while tensors are made; learning draws before that."""
    kinds = DareLinear | DellaLinear
    names = [name for name in method_names("merge") if issubclass(method_class("merge", name), kinds)]
    assert sorted(names) == [name.replace("_", "-") for name in DRAWING]
    files = Path(protocol.__file__).parent.rglob("*.py")
    drawing = [file.name for file in files if "operands.random(" in file.read_text(encoding="utf-8")]
    assert drawing == ["updates.py"]


def test_a_recipe_within_a_recipe_is_the_same_with_threads(toys: Make, tmp_path: Path):
    text = """
name: inner
merge_method: linear
models: [{model: a, parameters: {weight: 0.5}}, {model: b, parameters: {weight: 0.5}}]
---
merge_method: linear
models: [{model: inner, parameters: {weight: 0.3}}, {model: base, parameters: {weight: 0.7}}]
"""
    expected = weights(merge(text).save(tmp_path / "one"))
    assert weights(merge(text).save(tmp_path / "four", jobs=4)) == expected


def test_progress_is_reported_in_the_order_of_writing(toys: Make, tmp_path: Path):
    recipe = RECIPES["linear"] | {"models": [{"model": "a"}, {"model": "b"}]}
    for jobs in (1, 4):
        seen: list[tuple[str, int, int]] = []
        merge(recipe).save(
            tmp_path / str(jobs), jobs=jobs, progress=lambda *report, seen=seen: seen.append(report)
        )
        assert seen == [("merging tensors", place, 6) for place in range(7)]


def test_a_nan_is_blamed_on_its_input_whatever_the_threads(toys: Make, tmp_path: Path, layered: Any):
    broken = layered(1, noise_of=layered(0))
    broken["layers.1.mlp.weight"][2, 3] = np.nan
    save_file(broken, "a/model.safetensors", metadata={"format": "pt"})  # our writer would refuse it
    recipe = RECIPES["linear"] | {"models": [{"model": "a"}, {"model": "b"}]}
    for jobs in (1, 4):
        with pytest.raises(
            NumericalError, match=r"a: tensor 'layers.1.mlp.weight' holds a NaN .* element 15"
        ):
            merge(recipe).save(tmp_path / "out", jobs=jobs)
        assert not (tmp_path / "out").exists()


def test_memory_bounds_the_threads(toys: Make):
    result = plan(RECIPES["ties-global"] | {"models": [{"model": "a"}, {"model": "b"}]})
    assert isinstance(result, MergePlan)

    def allowed(jobs: int, memory: int | str | None) -> tuple[int, int]:
        return threads(result, RunSettings(jobs=jobs, memory=memory))

    assert allowed(4, None) == (4, ROOM)
    assert allowed(4, "1TB") == (4, ROOM)
    assert allowed(4, result.peak_memory) == (1, 0)
    two = result.memory_of(2) + result.largest_output + 77
    assert allowed(4, two) == (2, 77)
    with pytest.raises(OptionError, match="--memory"):
        allowed(4, 1000)
    with pytest.raises(OptionError, match="--jobs: 0 threads"):
        allowed(0, None)


def test_finished_tensors_never_take_more_than_the_room(tmp_path: Path):
    """The writer waits at the first tensor: workers may run ahead by the room, and not by one more."""
    entries: list[str] = []
    go = threading.Event()
    lock = threading.Lock()

    def producer(name: str) -> Callable[[], Any]:
        def produce() -> Any:
            if name == "t0":
                go.wait(10)
            with lock:
                entries.append(name)
            return np.full(100, float(name[1:]), np.float32)

        return produce

    plans = [TensorPlan(f"t{number}", (100,), "float32", producer(f"t{number}")) for number in range(9)]
    plans.insert(5, TensorPlan("t99", (1000,), "float32", lambda: np.ones(1000, np.float32)))
    with Ahead(2, room=1200) as ahead:  # three tensors of 400 bytes; t99 fits at no time
        wrapped = ahead.plans(plans, lambda plan: None)
        writer = threading.Thread(target=write_file, args=(tmp_path / "x.safetensors", wrapped))
        writer.start()
        threading.Event().wait(0.3)
        with lock:
            assert sorted(entries) == ["t1", "t2"]
        go.set()
        writer.join()
        assert ahead.room == 1200
    tensors = load_file(tmp_path / "x.safetensors")
    assert [float(tensors[f"t{number}"][0]) for number in range(9)] == list(range(9))
    assert len(tensors) == 10


def test_the_card_says_what_its_fingerprints_cover(toys: Make, tmp_path: Path, layered: Any):
    recipe = RECIPES["linear"] | {"models": [{"model": "a"}, {"model": "b"}]}
    card = (merge(recipe).save(tmp_path / "one") / "README.md").read_text()
    assert "sampled:" in card
    assert "does not vouch for every byte" in card
    with checkpoints.open("a") as model:
        before = sampled_fingerprint(model)
    changed = layered(1, noise_of=layered(0))
    changed["embed.weight"][-1, -1] += 1  # far from the start of a tensor
    toys("a", changed, num_hidden_layers=2)
    with checkpoints.open("a") as model:
        assert sampled_fingerprint(model) != before
