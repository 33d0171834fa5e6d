"""LoRA adapters in recipes: what they bring beside their factors, depth, bases, and hostile ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transship import checkpoints
from transship.errors import CheckpointError, NumericalError, OptionError, TransshipWarning
from transship.report import terminal
from transship.verbs.merge.api import merge
from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.plan import plan
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge
from transship.verbs.merge.recipe.plan.models import headed_config

pytestmark = pytest.mark.slow
LABELS = {"lora-mood": 2, "lora-topic": 4}
QUERY = "encoder.layer.{}.attention.self.query.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare encoder, and adapters that were trained on it with classification heads of their own."""
    import peft
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    transformers.BertModel(config).save_pretrained(folder / "bare")
    for seed, (name, labels) in enumerate(LABELS.items()):
        model = transformers.BertForSequenceClassification.from_pretrained(folder / "bare", num_labels=labels)
        settings = peft.LoraConfig(
            task_type="SEQ_CLS", r=2 + seed, lora_alpha=8, target_modules=["query", "value"]
        )
        wrapped = peft.get_peft_model(model, settings)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for key, tensor in wrapped.named_parameters():
                if "lora_" in key:
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)
        wrapped.save_pretrained(folder / name)
    return folder


@pytest.fixture
def adapters(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them that a test may spoil, as the working folder."""
    shutil.copytree(made, tmp_path / "models")
    monkeypatch.chdir(tmp_path / "models")
    return tmp_path / "models"


def recipe(method: str = "linear", **more: Any) -> dict[str, Any]:
    models = [
        {"model": "lora-mood", "parameters": {"weight": 1}},
        {"model": "lora-topic", "parameters": {"weight": 3}},
    ]
    return {"merge_method": method, "base_model": "bare", "models": models, **more}


def dense(name: str) -> dict[str, Any]:
    """What peft makes of one adapter on the base."""
    import peft
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained("bare", num_labels=LABELS[name])
    return dict(peft.PeftModel.from_pretrained(model, name).merge_and_unload().state_dict())


def test_adapters_with_heads_give_an_adapter_for_each_task_that_peft_loads(adapters: Path, tmp_path: Path):
    import peft
    import torch
    import transformers

    assert "lora-topic  classifier.bias, classifier.weight" in terminal.render(plan(recipe()).page())
    out = merge(recipe()).save(tmp_path / "out")
    assert sorted(path.name for path in out.glob("[!.]*")) == sorted(LABELS)
    alone = {name: dense(name) for name in LABELS}
    for name, labels in LABELS.items():
        base = transformers.BertForSequenceClassification.from_pretrained("bare", num_labels=labels)
        weights = peft.PeftModel.from_pretrained(base, out / name).merge_and_unload().state_dict()
        for key, tensor in weights.items():
            if key.startswith("classifier"):
                assert torch.equal(tensor, alone[name][key])
            else:
                mean = 0.25 * alone["lora-mood"][key] + 0.75 * alone["lora-topic"][key]
                torch.testing.assert_close(tensor, mean)


def test_a_base_with_an_adapter_that_brings_a_head_loads_as_that_task(adapters: Path, tmp_path: Path):
    import torch
    import transformers

    given = recipe("task_arithmetic", parameters={"weight": 0.5})
    given["models"] = [{"model": f"bare+{name}"} for name in LABELS]
    out = merge(given).save(tmp_path / "out")
    alone = {"merge_method": "passthrough", "models": [{"model": "bare+lora-topic"}]}
    merge(alone).save(out / "alone")
    for folder, name in (*((name, name) for name in LABELS), ("alone", "lora-topic")):
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            out / folder, output_loading_info=True
        )
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert model.config.architectures == ["BertForSequenceClassification"]
        assert torch.equal(model.classifier.weight, dense(name)["classifier.weight"])


def test_the_labels_of_a_head_are_the_rows_of_its_last_map():
    shapes = {"classifier.dense.weight": (16, 16), "classifier.out_proj.weight": (5, 16)}
    config = {"architectures": ["RobertaForMaskedLM"], "id2label": {"0": "no", "1": "yes"}}
    result = headed_config(config, shapes, {"task_type": "SEQ_CLS"})
    assert result["architectures"] == ["RobertaForSequenceClassification"]
    assert list(result["id2label"]) == ["0", "1", "2", "3", "4"]
    assert headed_config(config, {"classifier.weight": (2, 16)}, {}) == config  # it names them already
    assert headed_config(config, {"embeddings.extra": (3, 16)}, {"task_type": "SEQ_CLS"}) == config
    seeing = {"auto_mapping": {"base_model_class": "ViTForImageClassification"}}
    result = headed_config({"architectures": ["ViTModel"]}, {"classifier.weight": (3, 16)}, seeing)
    assert result["architectures"] == ["ViTForImageClassification"]


def test_a_gradient_over_depth_and_a_filter_reach_the_factors(adapters: Path):
    weight = [{"filter": "value", "value": 0.5}, {"value": [0.0, 1.0]}]
    given = recipe("task_arithmetic", parameters={"weight": weight, "lambda": 2.0})
    given["models"] = [{"model": "lora-mood"}]
    result = plan(given)
    assert isinstance(result, AdapterMerge)
    assert [result.methods[QUERY.format(layer)][1]["weight"] for layer in range(3)] == [
        (0.0,),
        (0.5,),
        (1.0,),
    ]
    method, values = result.methods[QUERY.format(1).replace("query", "value")]
    assert (method.scale, values["weight"]) == (2.0, (0.5,))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weight": "much"}, "'much' does not fit"),
        ({"weight": 0.0}, "the weights sum to 0"),
        ({}, "linear needs weight for lora-mood"),
    ],
)
def test_weights_that_mean_nothing_are_one_sentence(adapters: Path, parameters: Any, message: str):
    given = recipe(parameters=parameters)
    given["models"] = [{"model": name} for name in LABELS]
    with pytest.raises(OptionError, match=message):
        plan(given)


def test_a_plan_of_adapters_reads_no_weights(adapters: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(checkpoints.WeightFile, "raw", refuse)
    assert "tensors: 6 with rank 5" in terminal.render(plan(recipe()).page())


def test_adapters_of_different_bases_are_refused_unless_the_recipe_allows_it(adapters: Path):
    path = adapters / "lora-topic" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "base_model_name_or_path": "somebody/other-base"}))
    with pytest.raises(CheckpointError, match="it was trained on other-base, and lora-mood on bare"):
        plan(recipe())
    assert isinstance(plan(recipe(compatibility="off")), AdapterMerge)


def rebased(adapters: Path, name: str) -> None:
    """Let lora-mood say that it was trained on another base."""
    path = adapters / "lora-mood" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": name}))


def stranger(adapters: Path, noise: float) -> str:
    """Write a model of the base's shapes, so far from it; return its folder."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree("bare", "other")
    random = np.random.default_rng(0)
    arrays = {
        name: (array if noise < 1 else 0) + noise * array.std() * random.standard_normal(array.shape)
        for name, array in load_file("bare/model.safetensors").items()
    }
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    save_file(arrays, "other/model.safetensors", metadata={"format": "pt"})
    return str(adapters / "other")


ALONE = {"merge_method": "passthrough", "models": [{"model": "bare+lora-mood"}]}
TOGETHER = recipe()
TOGETHER["models"] = TOGETHER["models"][:1]


@pytest.mark.parametrize("given", [ALONE, TOGETHER], ids=["base+adapter", "adapters alone"])
def test_an_adapter_whose_own_base_has_other_weights_is_refused(
    given: dict[str, Any], adapters: Path, tmp_path: Path
):
    rebased(adapters, stranger(adapters, 1.0))
    with pytest.raises(
        CheckpointError, match=r"lora-mood: it was trained on .*other, which is another model"
    ):
        merge(given).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    merge({**given, "compatibility": "off"}).save(tmp_path / "off")


@pytest.mark.parametrize("given", [ALONE, TOGETHER], ids=["base+adapter", "adapters alone"])
def test_a_base_of_another_name_or_a_little_away_is_a_warning(
    given: dict[str, Any], adapters: Path, tmp_path: Path
):
    rebased(adapters, stranger(adapters, 0.1))
    with pytest.warns(TransshipWarning, match=r"lora-mood: it was trained on .*other, whose weights are \d"):
        merge(given).save(tmp_path / "near")
    rebased(adapters, "somebody/other-base")
    with pytest.warns(TransshipWarning, match="says that it was trained on somebody/other-base"):
        merge(given).save(tmp_path / "named")
    rebased(adapters, "somebody/bare")
    merge(given).save(tmp_path / "same")  # the name is the folder's: nothing is said


def test_a_nan_in_a_factor_is_one_sentence_and_leaves_nothing(adapters: Path, tmp_path: Path):
    from safetensors.numpy import load_file, save_file

    path = adapters / "lora-mood" / "adapter_model.safetensors"
    arrays = load_file(path)
    name = next(name for name in arrays if "lora_B" in name)
    arrays[name] = np.where(
        np.arange(arrays[name].size).reshape(arrays[name].shape) == 3, np.nan, arrays[name]
    )
    save_file(arrays, path)
    with pytest.raises(NumericalError, match="NaN") as caught:
        merge(recipe()).save(tmp_path / "out")
    assert "lora-mood" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_change_in_full_of_what_the_base_has_is_refused_by_name(adapters: Path):
    from safetensors.numpy import load_file, save_file

    path = adapters / "lora-mood" / "adapter_model.safetensors"
    arrays = load_file(path)
    arrays["base_model.model.bert.pooler.dense.bias"] = np.ones(16, np.float32)
    save_file(arrays, path)
    with pytest.raises(CheckpointError, match=r"'pooler\.dense\.bias' is saved in full"):
        plan(recipe())


@pytest.mark.parametrize("method", ["ties", "dare_linear", "sce", "breadcrumbs", "tsvm", "model_stock"])
@pytest.mark.parametrize("rank", [None, 3])
def test_what_a_method_makes_of_adapters_is_its_dense_result_cut_to_a_rank(
    adapters: Path, tmp_path: Path, method: str, rank: int | None
):
    """NumPy's best approximation of the same merge of base+adapter, whose models have the same names."""
    shared = {"dare_linear": {"density": 0.5}, "ties": {"density": 0.6}, "breadcrumbs": {"density": 0.8}}
    given = recipe(method, parameters=shared.get(method, {}), **({} if rank is None else {"lora_rank": rank}))
    if method in ("sce", "tsvm", "model_stock"):  # these find their weights themselves
        given["models"] = [{"model": name} for name in LABELS]
    update = plan(given).update()
    method_of_tensor, own = plan(given).methods[QUERY.format(1)]
    with checkpoints.open("bare") as base:
        changes = [
            checkpoints.Update.from_adapter(checkpoints.open(name), base).dense(QUERY.format(1))
            for name in LABELS
        ]
    flat = [change.reshape(-1) for change in changes]
    readers = [lambda start, stop, values=values: values[start:stop] for values in flat]
    zeros = np.zeros(changes[0].size, np.float32)
    whole = Operands(
        QUERY.format(1),
        changes[0].shape,
        readers,
        base=lambda start, stop: zeros[start:stop],
        values=own,
        labels=tuple(LABELS),
    )
    wanted = np.concatenate([np.array(part) for part in method_of_tensor.merge(whole)]).reshape(
        changes[0].shape
    )
    u, singular, vt = np.linalg.svd(wanted.astype(np.float64))
    kept = rank or 5  # 2 + 3
    cut = (u[:, :kept] * singular[:kept]) @ vt[:kept]
    np.testing.assert_allclose(update.dense(QUERY.format(1)), cut, atol=1e-5 * np.abs(cut).max())


def test_ties_of_adapters_is_ties_of_base_with_adapters(adapters: Path, tmp_path: Path):
    """At full rank nothing is cut: the merged adapter on its base is the dense merge of the models."""
    settings = {"parameters": {"density": 0.6}, "lora_rank": 16}
    wide = [
        {"model": name, "parameters": {"weight": weight}} for name, weight in (("wide-a", 1), ("wide-b", 2))
    ]
    with checkpoints.open("bare") as base:
        random = np.random.default_rng(0)
        for name in ("wide-a", "wide-b"):
            pair = random.normal(size=(2, 16, 16)).astype(np.float32) * 0.05
            change = checkpoints.Update.from_arrays({QUERY.format(0): (pair[0], pair[1])}, base=base)
            checkpoints.write_adapter(name, change)
        update = plan({"merge_method": "ties", "base_model": "bare", "models": wide, **settings}).update()
        models = [{**entry, "model": f"bare+{entry['model']}"} for entry in wide]
        dense_recipe = {
            "merge_method": "ties",
            "base_model": "bare",
            "models": models,
            "parameters": {"density": 0.6},
        }
        merged = merge(dense_recipe).tensor(QUERY.format(0)) - base.read(QUERY.format(0))
    np.testing.assert_allclose(update.dense(QUERY.format(0)), merged, atol=1e-5)


@pytest.mark.parametrize("space", ["core", "knots"])
def test_a_sum_is_the_same_in_the_spaces_of_the_factors(adapters: Path, space: str):
    """Trimming nothing, task arithmetic by another name: the spaces lose nothing of the updates."""
    given = recipe("dare_linear", parameters={"density": 1.0}, lora_space=space)
    plain = recipe("task_arithmetic")
    for name in plan(plain).methods:
        np.testing.assert_allclose(
            plan(given).update().dense(name), plan(plain).update().dense(name), atol=1e-6
        )


@pytest.mark.parametrize("space", ["full", "core", "knots"])
def test_peft_loads_a_ties_merge_from_every_space(adapters: Path, tmp_path: Path, space: str):
    import peft
    import torch
    import transformers

    given = recipe("ties", parameters={"density": 0.7}, lora_space=space, lora_rank=4)
    out = merge(given).save(tmp_path / "out")
    update = plan(given).update()
    bare = transformers.BertForSequenceClassification.from_pretrained("bare", num_labels=2)
    before = {name: tensor.clone() for name, tensor in bare.state_dict().items()}
    after = peft.PeftModel.from_pretrained(bare, out / "lora-mood").merge_and_unload().state_dict()
    for name in plan(given).methods:
        change = after[f"bert.{name}"] - before[f"bert.{name}"]
        torch.testing.assert_close(change, torch.from_numpy(update.dense(name)), atol=1e-6, rtol=1e-5)


def test_methods_that_need_more_than_updates_say_which_ones_do_not(adapters: Path):
    with pytest.raises(OptionError, match=r"adapters become an adapter by .*ties.* not by slerp"):
        plan(recipe("slerp", parameters={"t": 0.5}) | {"models": [{"model": name} for name in LABELS]})
    with pytest.raises(OptionError, match="the same in every space"):
        plan(recipe("linear", lora_space="core"))
    with pytest.raises(OptionError, match="looks at whole models"):
        plan(recipe("ties", parameters={"trim": "global"}))


def test_one_rslora_adapter_with_weight_one_stays_what_it_is(adapters: Path, tmp_path: Path):
    """Ranks and alphas by pattern as well: PEFT's own merge of the adapter is the reference."""
    import peft
    import torch
    import transformers

    base = transformers.BertModel.from_pretrained("bare")
    settings = peft.LoraConfig(
        r=4,
        lora_alpha=12,
        use_rslora=True,
        target_modules=["query", "value"],
        rank_pattern={"layer.1.attention.self.query": 6},
        alpha_pattern={"value": 5},
    )
    wrapped = peft.get_peft_model(base, settings)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    wrapped.save_pretrained("root")
    out = merge(
        {
            "merge_method": "task_arithmetic",
            "base_model": "bare",
            "models": [{"model": "root", "parameters": {"weight": 1}}],
        }
    ).save(tmp_path / "out")

    def computed(folder: Any) -> dict[str, torch.Tensor]:
        bare = transformers.BertModel.from_pretrained("bare")
        return dict(peft.PeftModel.from_pretrained(bare, folder).merge_and_unload().state_dict())

    wanted, result = computed("root"), computed(out)
    for name, tensor in wanted.items():
        torch.testing.assert_close(result[name], tensor, atol=1e-6, rtol=1e-6)
