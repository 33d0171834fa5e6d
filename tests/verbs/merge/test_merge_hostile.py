"""Hostile recipes and models: one sentence each, and nothing half-written."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transship.errors import NumericalError, OptionError, OutputError, TransshipError, TransshipWarning
from transship.verbs.merge.api import merge
from transship.verbs.merge.plan import plan

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


def hostile(name: str, toys: Make, layered: Any) -> Any:
    """Return a recipe that must fail, after making what it needs."""
    base = layered(0)
    if name == "shapes":
        toys("odd", base | {"layers.1.mlp.weight": np.ones((6, 7), np.float32)}, num_hidden_layers=2)
    elif name == "missing":
        toys(
            "odd",
            {key: value for key, value in base.items() if key != "layers.0.attn.weight"},
            num_hidden_layers=2,
        )
    elif name == "nan":
        toys("odd", base, num_hidden_layers=2)
        poison(Path("odd/model.safetensors"), "layers.0.mlp.weight", 7)
    elif name == "depth":
        toys("odd", layered(0, layers=3), num_hidden_layers=3)
    elif name == "stranger":
        toys("odd", layered(77), num_hidden_layers=2)
        return recipe("ties", models="", base="base") | {"models": [{"model": "odd"}, {"model": "a"}]}
    elif name == "architecture":
        toys("odd", base, num_hidden_layers=2, model_type="other")
    elif name == "range":
        sources = [{"model": "a", "layer_range": [1, 3]}, {"model": "b", "layer_range": [0, 2]}]
        return {"merge_method": "linear", "slices": [{"sources": sources}], "parameters": {"weight": 1}}
    elif name == "loop":
        Path("one.yaml").write_text("merge_method: passthrough\nmodels: [{model: two.yaml}]\n")
        Path("two.yaml").write_text("merge_method: passthrough\nmodels: [{model: one.yaml}]\n")
        return Path("one.yaml")
    elif name == "words":
        for folder, words in (("base", "abc"), ("odd", "acb")):
            toys(folder, {"embed_tokens.weight": np.ones((3, 2), np.float32)})
            (Path(folder) / "vocab.txt").write_text("\n".join(words))
        return {**recipe(models=""), "models": [{"model": "base"}, {"model": "odd"}]}
    return {**recipe(models=""), "models": [{"model": "a"}, {"model": "odd"}]}


def poison(path: Path, tensor: str, place: int) -> None:
    """Write a NaN into a stored tensor."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start = json.loads(data[8 : 8 + length])[tensor]["data_offsets"][0] + 8 + length + 4 * place
    data[start : start + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shapes", "tensor 'layers.1.mlp.weight': the models have other shapes: a [6, 6], odd [6, 7]"),
        ("missing", "only"),
        ("nan", "odd: tensor 'layers.0.mlp.weight' holds a NaN or an infinity at element 7"),
        ("depth", "the models have different numbers of layers (a 2, odd 3)"),
        ("stranger", "odd: it is no fine-tune of base"),
        (
            "architecture",
            "odd: its model type is other, and that of a is toy; merge models of one",
        ),
        ("range", "layer_range [1, 3] ends past the 2 layers of a; end it at 2 at the latest"),
        ("loop", "the recipes use one another in a loop (one.yaml → two.yaml → one.yaml)"),
        ("words", "odd: its vocabulary differs from that of base, as in 'b'"),
    ],
)
def test_hostile_input_is_one_sentence_and_leaves_nothing(
    name: str, message: str, toys: Make, layered: Any, tmp_path: Path
):
    given = hostile(name, toys, layered)
    out = tmp_path / "out"
    out.mkdir()
    if name == "missing":  # the first model has it: it is copied; the other way round it is an error
        given["extra_tensors"] = "error"
    with pytest.raises(TransshipError) as caught:
        merge(given).save(out / "model")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(out.iterdir()) == []


def test_a_recipe_that_uses_itself_by_name_is_one_sentence():
    single = "merge_method: passthrough\nmodels: [{model: x}]\n"
    text = f"name: x\n{single}---\n{single}"
    with pytest.raises(OptionError, match="which is itself or comes later"):
        merge(text)


def test_compatibility_may_be_a_warning(toys: Make, layered: Any, tmp_path: Path):
    given = hostile("stranger", toys, layered)
    with pytest.warns(TransshipWarning, match="no fine-tune of base"):
        merge({**given, "compatibility": "warn"}).save(tmp_path / "warned")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge({**given, "compatibility": "off"}).save(tmp_path / "silent")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    toys: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(OutputError, match="the disk has"):
        merge(recipe()).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_not_replaced_without_force(toys: Make, tmp_path: Path):
    merge(recipe()).save(tmp_path / "out")
    with pytest.raises(OutputError, match="exists already"):
        merge(recipe()).save(tmp_path / "out")
    merge(recipe()).save(tmp_path / "out", force=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (recipe("ties"), "ties needs a base"),
        (
            recipe("slerp", models="ab", base="base", parameters={"t": 0.5}),
            "slerp takes 1 model beside the base, not 2",
        ),
        (recipe("slerp", models="a", base="base"), "slerp needs t"),
        (recipe("model_stock", models="a", base="base"), "at least 2 models beside the base"),
        (recipe("linear", parameters={}), "linear needs weight for a"),
        (recipe("linear", base="base", models="", parameters={}), "models takes a list"),
        (recipe("ties", base="base", parameters={"weight": "much"}), "'much' does not fit"),
        (recipe("passthrough", models="ab"), "passthrough takes 1 model, not 2"),
        (recipe("linear", models="a", modules=None) | {"models": None}, "lists no models"),
        (recipe("linear", lora_rank=4), "lora_rank is for recipes of adapters alone"),
    ],
)
def test_a_recipe_that_the_method_cannot_follow_is_one_sentence(given: Any, message: str, toys: Make):
    with pytest.raises(OptionError) as caught:
        plan(given)
    assert message in str(caught.value)


def test_a_shared_parameter_of_one_model_is_refused(toys: Make):
    given = recipe("ties", base="base")
    given["models"][0]["parameters"] = {"normalize": False}
    with pytest.raises(OptionError, match="ties has one normalize for all models"):
        plan(given)


def test_numbers_too_large_for_the_output_are_one_sentence(safetensors_models: Make, tmp_path: Path):
    for name in "ab":
        safetensors_models(name, {"x.weight": np.full((3, 3), 1e5, np.float32)})
    with pytest.raises(NumericalError, match="too large for float16"):
        merge(recipe(out_dtype="float16")).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_while_writing_is_one_sentence_and_leaves_nothing(
    safetensors_models: Make, tmp_path: Path, warm: Any
):
    """A process that may write no file beyond 20 kB: the space was there when the merge began."""
    arrays = {f"part-{number}.weight": np.ones((64, 64), np.float32) for number in range(4)}
    for name in "ab":
        safetensors_models(name, arrays)
    Path("recipe.yaml").write_text(json.dumps(recipe()))
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from transship.cli import main\n"
        "sys.dont_write_bytecode = True\n"  # a file of bytecode that is cut short would spoil later runs
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "sys.argv = ['transship', 'merge', 'run', 'recipe.yaml', 'out']\n"
        "main()"
    )
    result = warm.run("-c", code, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "writing stopped" in result.stderr.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "recipe.yaml"]


@pytest.mark.parametrize("out", [".", "a", "pipe"])
def test_force_takes_neither_an_input_nor_the_folder_of_the_inputs_nor_a_pipe(
    out: str, toys: Make, tmp_path: Path
):
    for name in "ab":
        toys(name, {"part.weight": np.ones((4, 4), np.float32)})
    Path("recipe.yaml").write_text(json.dumps(recipe()))
    Path("notes.txt").write_text("mine")
    os.mkfifo("pipe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TransshipError, match=r"never|holds"):
        merge("recipe.yaml").run(out if out != "." else tmp_path, force=True)
    assert sorted(tmp_path.rglob("*")) == before
