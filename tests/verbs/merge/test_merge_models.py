"""The documented recipes on small Llama, GPT-2, BERT and T5 models, loaded with the users' libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transship import checkpoints
from transship.errors import OptionError
from transship.verbs.merge.api import merge
from transship.verbs.merge.plan import plan
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge
from transship.verbs.merge.recipe.plan.merge import MergePlan
from transship.verbs.merge.recipe.plan.words import read_vocabulary
from transship.verbs.merge.recipe.read.sources import CHAT_TEMPLATES
from transship.verbs.merge.recipe.run.tensors import Tensors

RECIPES = sorted((Path(__file__).parent / "recipes").glob("*.yaml"))


def load(folder: Path) -> Any:
    import transformers

    config = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_documented_recipe_runs_and_its_output_loads(path: Path, models: Path, tmp_path: Path):
    import torch

    merged = merge(path)
    out = merged.save(tmp_path / "out")
    model = load(out)
    assert (out / "recipe.yaml").read_text() == path.read_text()
    with checkpoints.open(out) as checkpoint:
        assert all(np.isfinite(checkpoint.read(name)).all() for name in checkpoint.tensors)
        assert isinstance(merged.plan, MergePlan)
        assert sum(info.nbytes for info in checkpoint.tensors.values()) == merged.plan.bytes_written
    words = torch.arange(8)[None]
    extra = {"decoder_input_ids": words} if path.stem == "modules" else {}
    with torch.no_grad():
        assert torch.isfinite(model.float()(input_ids=words, **extra).logits).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ties", "slerp", "linear"])
@pytest.mark.parametrize("family", ["vit", "clip"])
def test_models_that_see_are_merged_like_others(family: str, method: str, models: Path, tmp_path: Path):
    given: dict[str, Any] = {"merge_method": method, "models": [{"model": f"{family}-a"}]}
    if method == "linear":
        given |= {
            "models": [{"model": f"{family}-a"}, {"model": f"{family}-b"}],
            "parameters": {"weight": 0.5},
        }
    else:
        parameters = {"t": 0.3} if method == "slerp" else {"weight": 0.5, "density": 0.5}
        given |= {"base_model": f"{family}-base", "parameters": parameters}
    merged = merge(given)
    model = load(merged.save(tmp_path / "out"))
    assert isinstance(merged.plan, MergePlan)
    assert [stack.layers for stack in merged.plan.layout.stacks] == ([2] if family == "vit" else [2, 3])
    assert not merged.plan.outcome.copied
    with checkpoints.open(f"{family}-a") as checkpoint:
        assert {step.name for step in merged.plan.steps} == set(checkpoint.tensors)
    assert model is not None


@pytest.mark.slow
def test_a_sentence_encoder_keeps_its_pooling(minilm: Path, tmp_path: Path):
    given = {"merge_method": "linear", "models": [{"model": str(minilm)}] * 2, "parameters": {"weight": 1}}
    out = merge(given).save(tmp_path / "out")
    assert {path.name for path in out.iterdir()} >= {
        "1_Pooling",
        "modules.json",
        "tokenizer.json",
        "vocab.txt",
    }
    with checkpoints.open(minilm) as before, checkpoints.open(out) as after:
        assert before.fingerprint() == after.fingerprint()


@pytest.mark.slow
def test_heads_with_label_sets_of_their_own_are_kept_one_for_each_task(models: Path, tmp_path: Path):
    import torch

    given = {
        "merge_method": "task_arithmetic",
        "base_model": "bert-base",
        "models": [{"model": "bert-mood"}, {"model": "bert-topic"}],
        "parameters": {"weight": 0.5},
    }
    out = merge(given).save(tmp_path / "out")
    assert sorted(path.name for path in out.glob("[!.]*")) == ["backbone", "bert-mood", "bert-topic"]
    states = {}
    for name, labels in (("bert-mood", 2), ("bert-topic", 4)):
        task = load(out / name)
        assert task.config.num_labels == labels
        assert task.config.id2label[1] == f"{name.removeprefix('bert-')}-1"
        states[name] = task.state_dict()
        original = load(models / name).state_dict()
        assert torch.equal(states[name]["classifier.weight"], original["classifier.weight"])
    for key in states["bert-mood"]:
        if not key.startswith("classifier"):
            assert torch.equal(states["bert-mood"][key], states["bert-topic"][key])
    backbone = next((out / "backbone").glob("*.safetensors"))
    assert backbone.stat().st_nlink == 3  # the tasks share its bytes


@pytest.mark.slow
def test_adapters_are_added_from_their_factors_as_peft_adds_them(models: Path):
    import peft
    import transformers

    base = transformers.LlamaForCausalLM.from_pretrained(models / "llama-base", dtype="float32")
    dense = peft.PeftModel.from_pretrained(base, models / "llama-lora-a").merge_and_unload().state_dict()
    given = {
        "merge_method": "passthrough",
        "models": [{"model": "llama-base+llama-lora-a"}],
        "dtype": "float32",
    }
    for name in ("model.layers.2.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"):
        np.testing.assert_allclose(merge(given).tensor(name), dense[name].detach().numpy(), atol=1e-6)


@pytest.mark.slow
def test_adapters_in_give_an_adapter_out(models: Path, tmp_path: Path):
    import peft
    import torch
    import transformers

    given: dict[str, Any] = {
        "merge_method": "linear",
        "base_model": "llama-base",
        "models": [
            {"model": "llama-lora-a", "parameters": {"weight": 3}},
            {"model": "llama-lora-b", "parameters": {"weight": 1}},
        ],
    }
    result = plan(given)
    assert isinstance(result, AdapterMerge)
    assert set(result.ranks().values()) == {7}
    out = merge(given).save(tmp_path / "adapter")
    full = {
        **given,
        "models": [{**model, "model": f"llama-base+{model['model']}"} for model in given["models"]],
    }
    del full["base_model"]
    full["dtype"] = "float32"
    base = transformers.LlamaForCausalLM.from_pretrained(models / "llama-base", dtype="float32")
    joined = peft.PeftModel.from_pretrained(base, out).merge_and_unload().state_dict()
    for name in ("model.layers.1.mlp.down_proj.weight", "model.layers.3.self_attn.q_proj.weight"):
        np.testing.assert_allclose(joined[name].detach().numpy(), merge(full).tensor(name), atol=1e-5)
    cut = merge({**given, "lora_rank": 2})
    exact = merge(given).tensor("model.layers.1.mlp.down_proj.weight").astype(np.float64)
    u, s, vt = np.linalg.svd(exact)
    best = (u[:, :2] * s[:2]) @ vt[:2]
    np.testing.assert_allclose(cut.tensor("model.layers.1.mlp.down_proj.weight"), best, atol=1e-5)
    assert torch.is_tensor(joined[name])
    assert isinstance(plan({**given, "merge_method": "ties"}), AdapterMerge)


@pytest.mark.slow
def test_a_union_vocabulary_keeps_every_word_and_its_row(models: Path, tmp_path: Path):
    import transformers

    path = next(path for path in RECIPES if path.stem == "union")
    out = merge(path).save(tmp_path / "out")
    words, first, second = (
        read_vocabulary(folder) for folder in (out, models / "llama-a", models / "llama-words")
    )
    assert words is not None
    assert first is not None
    assert second is not None
    assert words.keys() == first.keys() | second.keys()
    with (
        checkpoints.open("llama-a") as a,
        checkpoints.open("llama-words") as b,
        checkpoints.open(out) as checkpoint,
    ):
        name = "model.embed_tokens.weight"
        merged, content, other = checkpoint.read(name), a.read(name), b.read(name)
    np.testing.assert_allclose(
        merged[words["word7"]], (content[first["word7"]] + other[second["word7"]]) / 2, atol=1e-6
    )
    np.testing.assert_allclose(
        merged[words["new2"]], other[second["new2"]], atol=1e-6
    )  # its only owner's row
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.convert_tokens_to_ids(["word7", "new2"]) == [words["word7"], words["new2"]]
    assert json.loads((out / "config.json").read_text())["vocab_size"] == len(words)


@pytest.mark.slow
def test_token_rules_and_padding_are_followed(models: Path):
    path = next(path for path in RECIPES if path.stem == "tokens")
    result = plan(path)
    assert isinstance(result, MergePlan)
    vocabulary = result.vocabulary
    assert vocabulary is not None
    assert (vocabulary.size, vocabulary.rows) == (64, 64)
    assert any("new2" in note and "zeros" in note for note in vocabulary.notes)
    padded = plan(path.read_text().replace("pad_to_multiple_of: 16", "pad_to_multiple_of: 50"))
    assert isinstance(padded, MergePlan)
    step = next(step for step in padded.steps if step.name == "model.embed_tokens.weight")
    rows = [Tensors(padded).reader(row)(0, 100 * 32).reshape(100, 32) for row in step.inputs]
    for matrix in rows:
        np.testing.assert_allclose(matrix[64:], np.tile(matrix[:64].mean(axis=0), (36, 1)), atol=1e-6)


@pytest.mark.slow
def test_chat_templates_are_chosen_and_built_in_ones_render(models: Path, tmp_path: Path):
    import jinja2
    import transformers

    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    for name, template in CHAT_TEMPLATES.items():
        text = jinja2.Template(template).render(
            messages=turns, bos_token="<s>", eos_token="</s>", add_generation_prompt=True
        )
        assert "hello" in text, name
    given = {
        "merge_method": "linear",
        "parameters": {"weight": 1},
        "models": [{"model": "llama-a"}, {"model": "llama-b"}],
        "chat_template": "chatml",
    }
    out = merge(given).save(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert "<|im_start|>user\nhello<|im_end|>" in tokenizer.apply_chat_template(turns, tokenize=False)
    with pytest.raises(OptionError, match="there is no chat template 'chatmll'"):
        merge({**given, "chat_template": "chatmll"}).save(tmp_path / "other")
