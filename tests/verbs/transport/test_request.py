"""What could only fail after the long work is refused before it, in one sentence."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from transship.data import wrap
from transship.errors import CheckpointError, DataError, OptionError, OutputError
from transship.registry import build_method
from transship.verbs.transport import Request, Settings, make_plan, transport


def refuse(what: str, done: int, total: int) -> None:
    raise AssertionError(f"{what}: it was refused too late")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("identity", {}),
        ("transfusion", {}),
        ("gradfix", {}),
        ("carry", {"body": "identity"}),
        ("carry", {"body": "transfusion"}),
    ],
)
def test_methods_for_equal_shapes_name_theseus_before_any_work(kit, method, options):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source), kit.tiny_vit(24, seed=4)
    given = {"data": kit.pictures(64), "batches": 1, "strength": 1.0, "progress": refuse}
    with pytest.raises(OptionError, match=r"moves between equal shapes only.*choose theseus"):
        transport(*models, method=method, options=options, **given)


def test_gradfix_on_theseus_and_deeper_relatives_are_not_refused(kit):
    source = kit.tiny_vit(16)
    tuned, given = kit.nudge(source), {"data": kit.pictures(64), "batches": 1, "strength": 1.0}
    wide, deep = kit.tiny_vit(24, seed=4), kit.tiny_vit(16, 3, seed=4)
    assert transport(source, tuned, wide, method="gradfix", options={"body": "theseus"}, **given).moved.dense
    assert transport(source, tuned, deep, method="identity", **given).moved.dense


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("gradient", {"blend": 2.0}, "blend is 2; choose from 0 to 1"),
        ("theseus", {"whiten": 0.7}, "whiten is 0.7; choose from 0 to 0.5"),
        ("theseus", {"hidden": -1.0}, "hidden is -1; choose 0 or more"),
        ("theseus", {"tolerance": -1.0}, "tolerance is -1; choose from 0 to 1"),
        ("pinv", {"tolerance": 3.0}, "tolerance is 3; choose from 0 to 1"),
        ("pinv-tikhonov", {"penalty": 0.0}, "penalty is 0; choose a number above 0"),
        ("carry", {"penalty": -1.0}, "penalty is -1; choose 0 or more"),
    ],
)
def test_parameters_out_of_range_are_refused_when_a_method_is_built(method, options, sentence):
    with pytest.raises(OptionError, match=sentence):
        build_method("transport", method, options)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"strength": float("nan")}, "the strength is nan; give a finite number"),
        ({"strength": float("inf")}, "the strength is inf; give a finite number"),
        ({"tokens_per_input": -3}, "-3 tokens per input; give 0 for all"),
        ({"head_inputs": 0}, "0 inputs; give 1 or more"),
    ],
)
def test_settings_out_of_range_are_refused(given, sentence):
    with pytest.raises(OptionError, match=sentence):
        Settings(**given)


def test_an_adapter_that_becomes_a_whole_model_needs_a_whole_models_space(kit):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source), kit.tiny_vit(24, seed=4)

    def needed(method, **settings) -> int:
        given = dict(zip(("source", "tuned", "target"), models, strict=True))
        plan = make_plan(Request(data=kit.pictures(64), settings=Settings(batches=1, **settings), **given))
        return replace(
            plan,
            method=method,
            target=replace(plan.target, checkpoint=SimpleNamespace(nbytes=1000)),
            update=replace(plan.update, adapter=True),
        ).result_bytes

    theseus = build_method("transport", "theseus")
    assert needed(theseus) == 0
    assert needed(theseus, path_steps=2) == 1000
    assert needed(build_method("transport", "carry")) == 1000
    assert needed(build_method("transport", "random-aligned")) == 1000, "noise has no low rank"
    assert needed(None) == 1000, "it may carry a head"


@pytest.fixture
def folders(kit, tmp_path):
    """A source, its fine-tune and a wider target on disk."""
    source = kit.tiny_vit(16)
    for name, model in (("a", source), ("tuned", kit.nudge(source)), ("b", kit.tiny_vit(24, seed=4))):
        model.save_pretrained(tmp_path / name)
    return [str(tmp_path / name) for name in ("a", "tuned", "b")]


def broken(folder: str, tensor: str, value: float) -> None:
    held = load_file(f"{folder}/model.safetensors")
    held[tensor].reshape(-1)[1] = value
    save_file(held, f"{folder}/model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("tensor", ["vit.embeddings.cls_token", "vit.layernorm.bias", "classifier.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_broken_weights_are_named_with_their_model_before_any_work(kit, folders, which, tensor, value):
    broken(folders[which], tensor, value)
    with pytest.raises(CheckpointError, match=f"its tensor '{tensor}' holds NaN or infinity") as refused:
        transport(*folders, data=kit.pictures(64), method="theseus", strength=1.0, progress=refuse)
    assert refused.value.where == folders[which]


def test_a_broken_adapter_is_named(kit, folders, tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import ViTForImageClassification

    base = ViTForImageClassification.from_pretrained(folders[0])
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "lora")
    file = tmp_path / "lora" / "adapter_model.safetensors"
    held = load_file(file)
    next(iter(held.values()))[0, 0] = float("nan")
    save_file(held, file)
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        transport(folders[0], str(tmp_path / "lora"), folders[2], data=kit.pictures(64), progress=refuse)


def test_an_adapter_may_change_its_tensors_by_more_than_they_hold(kit, folders, tmp_path):
    """A stranger's weights lie at √2; an adapter names its tensors, so that it cannot be a stranger's."""
    peft = pytest.importorskip("peft")
    from transformers import ViTForImageClassification

    base = ViTForImageClassification.from_pretrained(folders[0])
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "lora")
    given = {"data": kit.pictures(64), "method": "theseus", "strength": 1.0, "batches": 1}
    plan = make_plan(
        Request(
            source=folders[0],
            tuned=str(tmp_path / "lora"),
            target=folders[2],
            data=given["data"],
            settings=Settings(batches=1),
        )
    )
    assert plan.relative > 1.0
    assert transport(folders[0], str(tmp_path / "lora"), folders[2], **given).adapter


def test_outputs_never_replace_what_is_read(kit, folders, tmp_path):
    given = {"data": kit.pictures(64), "method": "theseus", "strength": 1.0, "batches": 1}
    result = transport(*folders, **given)
    shutil.copytree(folders[2], tmp_path / "kept")
    for folder, sentence in ((folders[2], "it is TARGET"), (str(tmp_path), "it holds SOURCE")):
        with pytest.raises(OutputError, match=sentence):
            result.save(folder, force=True)
    with pytest.raises(OutputError, match="it is a file of TUNED"):
        result.report(f"{folders[1]}/config.json", force=True)
    first, other = (load_file(f"{place}/model.safetensors") for place in (folders[2], tmp_path / "kept"))
    assert all(torch.equal(first[name], other[name]) for name in other)
    result.save(f"{folders[0]}/moved")  # beside a model's files nothing is lost


@pytest.mark.parametrize(
    ("classes", "method", "rows"),
    [(5, "auto", 1), (5, "carry", 1), (1, "theseus", 2), (1, "auto", 8)],
)
def test_too_few_inputs_to_choose_or_fit_on_are_refused_before_any_work(kit, classes, method, rows):
    source = kit.tiny_vit(16, classes=classes)
    models = source, kit.nudge(source), kit.tiny_vit(24, seed=4, classes=classes)
    with pytest.raises(DataError, match=r"too few to choose or to fit anything on; give more rows"):
        transport(*models, data=kit.pictures(rows), method=method, batches=1, progress=refuse)
    assert transport(*models, data=kit.pictures(rows), method="theseus", strength=1.0).moved.dense


def test_inputs_of_another_kind_are_refused_before_any_work(kit):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source), kit.tiny_vit(24, seed=4)
    texts, large = ["one text", "another"], kit.pictures(8, size=40)
    given = {"data": kit.pictures(64), "strength": 1.0, "batches": 1, "progress": refuse}
    for more, where in (
        ({"keep": texts}, "texts in memory"),
        ({"test": wrap(texts, [0, 1], kind="text", name="tagged")}, "tagged"),
        ({"test": wrap(large, np.arange(8) % 5, kind="array", name="large")}, "large"),
        ({"original": wrap(large, np.arange(8) % 5, kind="array", name="large")}, "large"),
        ({"data": texts}, "ViTForImageClassification"),
        ({"data": large}, "ViTForImageClassification"),
        ({"data": None}, "data"),
        ({"data": [large[0], kit.pictures(1)[0]]}, "arrays in memory"),
    ):
        with pytest.raises(DataError) as refused:
            transport(*models, method="carry", **{**given, **more})
        assert where in refused.value.where or where in str(refused.value), more


def test_devices_that_are_not_there_are_named(kit):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source), kit.tiny_vit(24, seed=4)
    with pytest.raises(OptionError, match="torch has no device 'nowhere' here"):
        transport(*models, data=kit.pictures(64), device="nowhere")


def test_shots_are_rows_and_not_all_rows_of_one_id(kit):
    from transship.data import Dataset
    from transship.verbs.transport.rows import draw

    labels = np.arange(60) % 3
    data = Dataset(
        "same ids", "array", kit.pictures(60), labels, ("a", "b", "c"), np.zeros(60, int), None, True
    )
    assert np.bincount(draw(data, shots=4).calibration_labels).tolist() == [4, 4, 4]
