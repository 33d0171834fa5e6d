"""Hostile models under every method: one sentence that names the culprit, and nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from transship.errors import CheckpointError, NumericalError, TransshipError, TransshipWarning
from transship.verbs.merge.api import merge
from transship.verbs.merge.protocol import LearnedMethod, recipe_method, recipe_methods

Make = Callable[..., None]
PLAIN = [name for name in recipe_methods() if not issubclass(recipe_method(name) or object, LearnedMethod)]


def recipe(method: str, *models: str, base: bool = True) -> dict[str, Any]:
    """Return a recipe of so many of `models` as the method takes, with every parameter that it wants."""
    kind = recipe_method(method)
    assert kind is not None
    parameters: dict[str, Any] = dict.fromkeys(kind.required, 0.5)
    if "density" in kind.per_model and method != "task_arithmetic":
        parameters["density"] = 0.5
    listed = [{"model": name} for name in models[: kind.most]]
    fields = {"merge_method": method, "models": listed, "parameters": parameters}
    return fields | ({"base_model": "base"} if base and kind.base != "input" else {})


def poison(model: str, tensor: str, value: float) -> None:
    arrays = {name: np.array(array) for name, array in load_file(f"{model}/model.safetensors").items()}
    arrays[tensor].reshape(-1)[7] = value
    save_file(arrays, f"{model}/model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", PLAIN)
def test_a_nan_is_blamed_on_its_model_by_every_method(
    method: str, value: float, toys: Make, tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    poison("a", "layers.0.mlp.weight", value)
    with pytest.raises(NumericalError, match=r"^a: tensor 'layers\.0\.mlp\.weight' .* at element 7"):
        merge(recipe(method, "a", "b")).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "method", [name for name in PLAIN if (kind := recipe_method(name)) and kind.base == "required"]
)
def test_a_model_of_another_base_is_refused_by_every_method_with_a_base(
    method: str, toys: Make, layered: Any, tmp_path: Path
):
    toys("odd", layered(77), num_hidden_layers=2)
    with pytest.raises(CheckpointError, match="odd: it is no fine-tune of base"):
        merge(recipe(method, "odd", "a")).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["linear", "karcher", "multislerp", "nuslerp"])
def test_models_of_different_bases_are_refused_without_a_base_too(
    method: str, toys: Make, layered: Any, tmp_path: Path
):
    toys("odd", layered(77), num_hidden_layers=2)
    given = recipe(method, "a", "odd", base=False)
    with pytest.raises(CheckpointError, match=r"odd: it is of another base than a .* compatibility: warn"):
        merge(given).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.warns(TransshipWarning, match="odd: it is of another base than a"):
        merge({**given, "compatibility": "warn"}).save(tmp_path / "warned")
    merge({**given, "compatibility": "off"}).save(tmp_path / "off")
    merge(recipe(method, "a", "b", base=False)).save(tmp_path / "kin")  # fine-tunes of one base


def test_an_inner_recipe_is_held_to_the_same(toys: Make, layered: Any, tmp_path: Path):
    toys("odd", layered(77), num_hidden_layers=2)
    inner = {"name": "made", **recipe("linear", "a", "odd", base=False)}
    outer = recipe("linear", "made", "b", base=False)
    with pytest.raises(CheckpointError, match="odd: it is of another base than a"):
        merge(f"{yaml.safe_dump(inner)}---\n{yaml.safe_dump(outer)}").save(tmp_path / "out")


def test_layers_that_slices_put_side_by_side_are_not_compared(toys: Make, tmp_path: Path):
    sources = [
        {"model": name, "layer_range": layers, "parameters": {"weight": 0.5}}
        for name, layers in (("a", [0, 1]), ("b", [1, 2]))
    ]
    merge({"merge_method": "linear", "slices": [{"sources": sources}]}).save(tmp_path / "out")


def speaking(make: Make, **words: str | None) -> None:
    """Make models with a row for each word, and a tokenizer where there are words."""
    for name, own in words.items():
        make(name, {"embed_tokens.weight": np.ones((len(own or "abc"), 2), np.float32)})
        if own is not None:
            (Path(name) / "vocab.txt").write_text("\n".join(own))


OTHER_WORDS = r"^odd: its vocabulary differs .* as in '.', and there is no rule"


@pytest.mark.parametrize("words", ["abcd", "acb"])
def test_other_words_are_refused_without_a_rule_whatever_their_number(
    words: str, safetensors_models: Make, tmp_path: Path
):
    speaking(safetensors_models, base="abc", a="abc", odd=words)
    with pytest.raises(TransshipError, match=OTHER_WORDS):
        merge(recipe("task_arithmetic", "a", "odd")).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_words_are_refused_where_the_base_has_no_tokenizer(safetensors_models: Make, tmp_path: Path):
    speaking(safetensors_models, base=None, a="abc", odd="acb")
    with pytest.raises(TransshipError, match=OTHER_WORDS):
        merge(recipe("task_arithmetic", "a", "odd")).save(tmp_path / "out")
