"""Recipes with data: from YAML to folders that `from_pretrained` reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from transship import checkpoints
from transship.cli.merge import command
from transship.errors import NumericalError, OptionError, TransshipError
from transship.report import Table, terminal
from transship.verbs.merge.api import merge
from transship.verbs.merge.plan import plan
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge
from transship.verbs.merge.recipe.plan.merge import MergePlan


def recipe(method: str, *, base: str | None = "base", **more: Any) -> dict[str, Any]:
    models = [
        {"model": name, "data": {"path": f"{name}.npz", "column": "inputs", "label": "labels"}}
        for name in ("shape", "tone")
    ]
    fields: dict[str, Any] = {"merge_method": method, "models": models, **more}
    return fields if base is None else {**fields, "base_model": base}


QUICK: dict[str, dict[str, Any]] = {
    "fisher": {},
    "regmean": {},
    "regmean++": {},
    "adamerging": {"steps": 3},
    "concrete": {"steps": 3},
    "otmf": {"iterations": 4, "batch_size": 8},
    "multitask": {"steps": 3},
}


@pytest.mark.parametrize("method", QUICK)
def test_every_method_with_data_makes_one_backbone_and_a_head_for_each_task(
    pictures: Path, tmp_path: Path, method: str
):
    import transformers

    out = merge(recipe(method, parameters=QUICK[method])).save(tmp_path / "out")
    assert sorted(path.name for path in out.glob("[!.]*")) == ["backbone", "shape", "tone"]
    weights = []
    for name in ("shape", "tone"):
        model = transformers.AutoModelForImageClassification.from_pretrained(out / name)
        own = transformers.AutoModelForImageClassification.from_pretrained(name)
        assert model.config.id2label == own.config.id2label
        torch.testing.assert_close(model.classifier.weight, own.classifier.weight)
        weights.append(model.vit.state_dict())
        differ = [
            key for key, value in own.vit.state_dict().items() if not torch.equal(value, weights[-1][key])
        ]
        assert len(differ) > 20
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_recipe_is_the_same_as_the_joint_merge_in_memory(pictures: Path, tmp_path: Path):
    import transformers

    from transship.verbs.merge.joint import joint

    class Features(torch.nn.Module):
        def __init__(self, vit: torch.nn.Module) -> None:
            super().__init__()
            self.vit = vit

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.vit(pixels).last_hidden_state
            return states[:, 0]

    actual = merge(recipe("regmean"))
    base = Features(transformers.ViTModel.from_pretrained("base", add_pooling_layer=False)).eval()
    tuned, data = {}, {}
    for name in ("shape", "tone"):
        model = transformers.AutoModelForImageClassification.from_pretrained(name)
        tuned[name] = {f"vit.{key}": value for key, value in model.vit.state_dict().items()}
        tuned[name] |= {f"head.{key}": value for key, value in model.classifier.state_dict().items()}
        data[name] = torch.from_numpy(np.load(f"{name}.npz")["inputs"])
    expected = joint(base, tuned, data, "regmean")
    merged = transformers.ViTModel.from_pretrained(
        actual.save(tmp_path / "out") / "backbone", add_pooling_layer=False
    )
    for name, change in expected.items():
        own = merged.state_dict()[name.removeprefix("vit.")]
        torch.testing.assert_close(own, base.state_dict()[name] + change, rtol=0, atol=2e-5)


def test_the_same_recipe_gives_the_same_bytes_for_any_number_of_threads(pictures: Path, tmp_path: Path):
    given = recipe("concrete", parameters={"steps": 2})
    first = merge(given).save(tmp_path / "one") / "backbone/model.safetensors"
    second = merge(given).save(tmp_path / "two", jobs=3) / "backbone/model.safetensors"
    other = merge(given, seed=1).save(tmp_path / "other") / "backbone/model.safetensors"
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()


def test_tsvm_needs_no_data_and_folders_inside_a_model_go_along(pictures: Path, tmp_path: Path):
    models = [{"model": "shape"}, {"model": "tone"}]
    shutil.copytree("base", tmp_path / "encoder")
    (tmp_path / "encoder/modules.json").write_text('[{"path": "1_Pooling", "type": "Pooling"}]')
    (tmp_path / "encoder/1_Pooling").mkdir()
    (tmp_path / "encoder/1_Pooling/config.json").write_text("{}")
    base = str(tmp_path / "encoder")
    out = merge({"merge_method": "tsvm", "models": models, "base_model": base}).save(tmp_path / "out")
    with checkpoints.open(out / "backbone") as checkpoint, checkpoints.open("base") as origin:
        assert set(checkpoint.tensors) == set(origin.tensors)
    assert (out / "tone/1_Pooling/config.json").read_text() == "{}"


@pytest.mark.parametrize("search", ["outputs", "entropy", "agreement"])
def test_auto_weights_lower_what_they_search_for_and_are_in_the_card(
    pictures: Path, tmp_path: Path, search: str
):
    merged = merge(recipe("task_arithmetic", weights={"search": search, "rounds": 1}))
    report = merged.learnt()
    assert report["search"]["end"] <= report["search"]["start"]
    assert report["search"]["trials"] > 3
    if search == "outputs":
        assert report["search"]["end"] < report["search"]["start"]
    out = merged.save(tmp_path / "out")
    card = json.loads((out / "backbone/transship.json").read_text())
    assert card["parameters"]["weights"] == report["weights"]
    plain = recipe("task_arithmetic")
    for model in plain["models"]:
        del model["data"]
        model["parameters"] = {"weight": report["weights"][model["model"]]}
    name = "encoder.layer.0.attention.attention.query.weight"
    np.testing.assert_allclose(merge(plain).tensor(name), merged.tensor(name), atol=1e-5)


def test_auto_weights_prefer_the_model_whose_task_it_is(pictures: Path):
    """Both data sets belong to one model: the other's weight must fall below its own."""
    given = recipe("linear", base=None, weights="auto", heads="per_task")
    given["models"] = [
        {"model": "shape", "data": {"path": "shape.npz", "column": "inputs"}},
        {"model": "base-copy", "data": {"path": "shape.npz", "column": "inputs"}},
    ]
    import transformers

    model = transformers.AutoModelForImageClassification.from_pretrained("shape")
    with torch.no_grad():
        for tensor in model.vit.parameters():
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)))
    shutil.rmtree("base-copy", ignore_errors=True)
    model.save_pretrained("base-copy")
    weights = merge(given).learnt()["weights"]
    assert len(set(weights.values())) == 2


def test_the_command_prints_the_weights_it_found(pictures: Path, tmp_path: Path):
    import yaml

    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe("task_arithmetic", weights={"rounds": 1})))
    result = CliRunner().invoke(command, ["run", str(path), str(tmp_path / "out"), "--json", "--jobs", "2"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert set(record["weights"]) == {"shape", "tone"}
    assert record["data"] == {"shape": "shape.npz", "tone": "tone.npz"}


def text(body: str) -> str:
    return f"base_model: base\n{body}\n"


MISTAKES = {
    "no data for one": (
        "merge_method: fisher\nmodels:\n- {model: shape, data: shape.npz}\n- {model: tone}",
        r":5: fisher runs tone on inputs of its task, and it has no data; add data:",
    ),
    "misspelt key": (
        "merge_method: fisher\nmodels:\n- model: shape\n  data: {path: a, colum: inputs}\n- {model: tone}",
        r":5: there is no key in data 'colum'; did you mean 'column'",
    ),
    "misspelt kind": (
        "merge_method: fisher\nmodels:\n- model: shape\n  data: {path: a, kind: imag}\n- {model: tone}",
        r":5: there is no kind of data 'imag'; did you mean 'image'",
    ),
    "no path": (
        "merge_method: fisher\nmodels:\n- model: shape\n  data: {column: inputs}\n- {model: tone}",
        r":5: the data has no path",
    ),
    "test rows": (
        "merge_method: fisher\nmodels:\n- {model: shape, data: {path: x, split: test}}\n- {model: tone}",
        r":4: a merge that has read the test inputs cannot be judged by them",
    ),
    "no use": (
        "merge_method: task_arithmetic\nmodels:\n- {model: shape, data: shape.npz}\n- {model: tone}",
        r":4: task_arithmetic reads no data; remove data:, or set weights: auto",
    ),
    "auto without weights": (
        "merge_method: fisher\nweights: auto\nmodels:\n- {model: shape, data: a}\n- {model: tone, data: b}",
        r":3: fisher has no weights to search for",
    ),
    "weights as a number": (
        "merge_method: linear\nweights: 0.5\nmodels:\n- {model: shape, data: a}\n- {model: tone, data: b}",
        r":3: weights is 0.5; write weights: auto",
    ),
    "search": (
        "merge_method: linear\nweights: {search: entropi}\nmodels:\n- {model: shape, data: a}",
        r":3: there is no search 'entropi'; did you mean 'entropy'",
    ),
    "slices": (
        "merge_method: regmean\nslices:\n- sources:\n  - {model: shape, layer_range: [0, 2]}\n"
        "  - {model: base, layer_range: [0, 2]}",
        r"regmean runs whole models, and the recipe has slices",
    ),
    "parameter": (
        "merge_method: regmean\nparameters: {kep: 0.9}\nmodels:\n- {model: shape, data: a}",
        r":3: there is no parameter of regmean 'kep'; did you mean 'keep'",
    ),
    "missing file": (
        "merge_method: regmean\nmodels:\n- {model: shape, data: nowhere.npz}\n- {model: tone, data: b}",
        r"nowhere.npz",
    ),
    "by tensor": (
        "merge_method: regmean\nparameters: {keep: [{filter: layer, value: 0.5}, {value: 0.9}]}\nmodels:\n"
        "- {model: shape, data: {path: shape.npz, column: inputs}}\n"
        "- {model: tone, data: {path: tone.npz, column: inputs}}",
        r"the parameters of regmean differ between tensors",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_sentence_with_their_line_and_nothing_is_written(
    pictures: Path, tmp_path: Path, name: str
):
    body, expected = MISTAKES[name]
    with pytest.raises(TransshipError, match=expected):
        merge(text(body)).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_with_nan_or_without_a_head_is_refused_before_anything_is_written(
    pictures: Path, tmp_path: Path
):
    import safetensors.torch

    shutil.copytree("shape", tmp_path / "broken")
    file = tmp_path / "broken/model.safetensors"
    tensors = safetensors.torch.load_file(file)
    name = next(key for key in tensors if key.endswith("layernorm_before.weight"))
    tensors[name][3] = float("nan")
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    given = recipe("regmean")
    given["models"][0]["model"] = str(tmp_path / "broken")
    with pytest.raises(NumericalError, match=r"broken: tensor '.*layernorm_before.weight' holds a NaN"):
        merge(given).save(tmp_path / "out")
    bare = recipe("fisher")
    bare["models"][0]["model"] = "base-again"
    shutil.copytree("base", "base-again", dirs_exist_ok=True)
    with pytest.raises(OptionError, match=r"base-again: fisher needs the logits of a classifier"):
        merge(bare).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def table(found: MergePlan | AdapterMerge, title: str) -> list[list[str]]:
    """Return the rows of a section of a plan's page."""
    (section,) = [section for section in found.sections() if section.title == title]
    (block,) = section.blocks
    assert isinstance(block, Table)
    return [list(row) for row in block.rows]


def test_the_plan_says_what_data_and_memory_it_will_take(pictures: Path):
    result = plan(recipe("regmean"))
    assert ["shape", "shape.npz"] in [row[:2] for row in table(result, "Tasks")]
    assert result.peak_memory > 400_000_000
    assert (
        plan(
            {"merge_method": "tsvm", "models": [{"model": "shape"}, {"model": "tone"}], "base_model": "base"}
        ).peak_memory
        < 100_000_000
    )


@pytest.mark.slow
def test_adapters_run_with_their_base_and_not_alone(models: Path, tmp_path: Path):
    """A merge of base+adapter is that of the same weights as whole models, which need not be on disk."""
    entries: dict[str, list[dict[str, Any]]] = {"whole": [], "factors": []}
    for number, letter in enumerate("ab"):
        words = [
            " ".join(f"word{(row * 7 + place + number) % 52}" for place in range(6)) for row in range(12)
        ]
        (tmp_path / f"{letter}.txt").write_text("\n".join(words))
        factors = f"llama-base+llama-lora-{letter}"
        result = [{"model": factors, "parameters": {"weight": 1.0}}]
        whole = merge({"merge_method": "linear", "models": result, "out_dtype": "float32"}).save(
            tmp_path / letter
        )
        for kind, model in (("whole", str(whole)), ("factors", factors)):
            entries[kind].append({"model": model, "data": str(tmp_path / f"{letter}.txt")})
    name = "model.layers.1.self_attn.q_proj.weight"
    given = {"merge_method": "regmean", "base_model": "llama-base", "out_dtype": "float32"}
    tensors = [merge({**given, "models": chosen}).tensor(name) for chosen in entries.values()]
    np.testing.assert_allclose(tensors[0], tensors[1], atol=2e-5)
    with checkpoints.open("llama-base") as base:
        assert np.abs(tensors[0] - base.read(name)).max() > 0.01
    alone = [{"model": f"llama-lora-{letter}", "data": "a.txt"} for letter in "ab"]
    with pytest.raises(OptionError, match="adapters alone cannot be run on data"):
        plan({"merge_method": "linear", "weights": "auto", "models": alone})


def answers(folder: Path | str, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What a saved classifier says of a task's inputs: features before its head, and logits."""
    import transformers

    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    inputs = torch.from_numpy(np.load(f"{name}.npz")["inputs"])
    with torch.no_grad():
        features = model.vit(pixel_values=inputs).last_hidden_state[:, 0]
        return features, model(pixel_values=inputs).logits


@pytest.mark.parametrize("method", ["task_arithmetic", "regmean"])
def test_carried_heads_are_the_ridge_from_merged_features_onto_the_own_answers(
    pictures: Path, tmp_path: Path, method: str
):
    from transship.verbs.merge.tasks.heads import HeadSettings, LinearHead, carry

    parameters = {"parameters": {"weight": 1.5}} if method == "task_arithmetic" else {}
    out = merge(recipe(method, heads="carried", **parameters)).save(tmp_path / "out")
    for name in ("shape", "tone"):
        features, logits = answers(out / name, name)
        own_features, wanted = answers(name, name)
        with checkpoints.open(name) as tuned:
            own = LinearHead(tuned.tensor("classifier.weight"), tuned.tensor("classifier.bias"))
        torch.testing.assert_close(own(own_features), wanted, atol=1e-5, rtol=1e-5)
        expected = carry(features, wanted, own, HeadSettings())
        torch.testing.assert_close(logits, expected(features), atol=1e-4, rtol=1e-4)
        before, after = (own(features) - wanted).square().mean(), (logits - wanted).square().mean()
        assert after < before


@pytest.mark.parametrize("kind", ["carried-polished", "tuned"])
def test_other_fitted_heads_change_the_head_alone_and_are_told(pictures: Path, tmp_path: Path, kind: str):
    plain = merge(recipe("regmean", heads="per_task")).save(tmp_path / "plain")
    fitted = merge(recipe("regmean", heads=kind))
    heads = [row[2] for row in table(fitted.plan, "Tasks")]
    assert all(f"classifier.weight ({kind.replace('-', '_')})" in head for head in heads)
    result = fitted.run(tmp_path / "out")
    for name in ("shape", "tone"):
        with checkpoints.open(plain / name) as checkpoint, checkpoints.open(result.folder / name) as other:
            changed = {
                key for key in checkpoint.tensors if not np.array_equal(checkpoint.read(key), other.read(key))
            }
        assert changed == {"classifier.weight", "classifier.bias"}
    shares = result.learnt["agreement"]
    assert set(shares) == {"shape", "tone"}
    assert "answers as its own model does" in terminal.render(result.page())
    if kind == "carried-polished":
        assert all(share["carried_polished"] >= share["own"] for share in shares.values())


def test_fitted_heads_ask_for_data_and_for_a_head(pictures: Path, tmp_path: Path):
    given = recipe("task_arithmetic", heads="carried", parameters={"weight": 0.5})
    del given["models"][1]["data"]
    with pytest.raises(
        OptionError, match="heads: carried runs tone on inputs of its task, and it has no data"
    ):
        plan(given)
    bare = {"model": "base", "data": {"path": "shape.npz", "column": "inputs"}}
    given = {**recipe("linear", base=None, heads="carried", parameters={"weight": 0.5})}
    given["models"] = [bare, given["models"][0]]
    with pytest.raises(TransshipError, match="no last linear layer of its own"):
        merge(given).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["fisher", "regmean"])
def test_an_adapter_that_brings_a_head_runs_with_it(pictures: Path, tmp_path: Path, method: str):
    """The same recipe of the models that peft makes of base and adapters gives the same result."""
    import peft
    import transformers

    models = {}
    for seed, name in enumerate(("shape", "tone")):
        model = transformers.ViTForImageClassification.from_pretrained("base", num_labels=3 + seed)
        projections = sorted(
            {key.split(".")[-1] for key, _ in model.named_modules() if "q" in key.split(".")[-1]}
        )
        settings = peft.LoraConfig(r=2, target_modules=projections, modules_to_save=["classifier"])
        wrapped = peft.get_peft_model(model, settings)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in wrapped.parameters():
                if tensor.requires_grad:
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
        wrapped.save_pretrained(tmp_path / "adapters" / name)
        wrapped.merge_and_unload().save_pretrained(tmp_path / "whole" / name)
        models[name] = {"path": f"{name}.npz", "column": "inputs"}
    by_name = {}
    for kind, start in (("adapters", "base+"), ("whole", "")):
        listed = [
            {"model": f"{start}{tmp_path / kind / name}", "data": data} for name, data in models.items()
        ]
        given = {"merge_method": method, "base_model": "base", "models": listed}
        by_name[kind] = merge(given).save(tmp_path / f"{kind}-out")
    for name in models:
        result, other = (
            answers(by_name["adapters"] / name, name)[1],
            answers(by_name["whole"] / name, name)[1],
        )
        torch.testing.assert_close(result, other, atol=1e-4, rtol=1e-4)
