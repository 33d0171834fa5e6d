"""The memory that a plan states for recipes with data: activations are in it, by what is really read."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transship.checkpoints.footprint import Footprint
from transship.verbs.merge.api import merge
from transship.verbs.merge.fusion.measure import StepCost, anonymous_memory
from transship.verbs.merge.plan import plan
from transship.verbs.merge.recipe.plan.footprint import most_tokens
from transship.verbs.merge.recipe.plan.merge import MergePlan
from transship.verbs.merge.recipe.read.sources import DataRule

LAYERS, INPUTS = 6, 64


@pytest.fixture
def tall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Picture models of few weights and many tokens: `base`, `one`, `two`, with data."""
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    sides = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = transformers.ViTConfig(image_size=32, patch_size=4, num_hidden_layers=LAYERS, **sides)
    base = transformers.ViTModel(config, add_pooling_layer=False)
    base.save_pretrained(tmp_path / "base")
    for name in ("one", "two"):
        model = transformers.ViTForImageClassification(config)
        for key, tensor in base.state_dict().items():
            model.vit.state_dict()[key].copy_(tensor + 0.01 * torch.randn_like(tensor))
        model.save_pretrained(tmp_path / name)
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).random((INPUTS, 3, 32, 32), np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(method: str, **parameters: Any) -> dict[str, Any]:
    models = [{"model": name, "data": f"{name}.npy"} for name in ("one", "two")]
    return {"merge_method": method, "models": models, "base_model": "base", "parameters": parameters}


def stated(given: dict[str, Any]) -> int:
    result = plan(given)
    assert isinstance(result, MergePlan)
    return result.peak_memory


def taken(given: dict[str, Any]) -> int:
    """Return what learning takes beside what there is."""
    ready = merge(given)
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would be used again, and not be seen
    before = anonymous_memory()
    with StepCost() as cost:
        ready.learnt()
    return cost.memory - before


@pytest.mark.parametrize(("method", "more"), [("otmf", {"iterations": 2}), ("regmean", {})])
def test_a_larger_batch_takes_no_more_than_is_stated_and_not_much_less(
    tall: Path, method: str, more: dict[str, Any]
):
    small, large = (recipe(method, batch_size=size, **more) for size in (1, INPUTS))
    taken(small)  # libraries that come with the first use
    value = stated(large) - stated(small)
    assert value == (INPUTS - 1) * LAYERS * Footprint.of("one").forward(1)
    grown = taken(large) - taken(small)
    assert grown < value < 20 * grown, (grown, value)


def test_methods_that_run_block_by_block_or_input_by_input_state_less(tall: Path):
    outputs = Footprint.of("one").forward(1)
    assert (
        stated(recipe("regmean++", batch_size=9)) - stated(recipe("regmean++", batch_size=1)) == 8 * outputs
    )
    assert stated(recipe("fisher", batch_size=9)) == stated(recipe("fisher", batch_size=1))
    whole = recipe("fisher", batch_size=9, definition="batch")
    assert stated(whole) - stated(recipe("fisher")) == 8 * LAYERS * outputs
    linear = {**recipe("task_arithmetic", weight=0.5), "heads": "carried"}
    assert stated({**linear, "weights": "auto"}) > stated(linear) > 64 * outputs


def test_a_text_counts_with_its_tokens_and_data_that_is_not_here_with_the_models_limit(
    models: Path, tmp_path: Path
):
    import transformers

    folder = Path("llama-base").resolve()
    limit = Footprint.of(folder).tokens
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    by_name = {}
    for words in (1, 3):
        text, file = " ".join(["word1"] * words), tmp_path / f"{words}.txt"
        file.write_text(f"{text}\na")
        by_name[words] = most_tokens(folder, DataRule(path=str(file)))
        assert by_name[words] == len(tokenizer(text)["input_ids"]) + 2
    assert most_tokens(folder, DataRule(path="nobody/has-this")) is None
    assert most_tokens(None, DataRule(path=str(tmp_path / "1.txt"))) == len("word1") + 2

    def of(data: str) -> int:
        entries = [{"model": f"llama-{letter}", "data": data} for letter in "ab"]
        return stated({"merge_method": "regmean", "models": entries, "base_model": "llama-base"})

    sizes = Footprint.of("llama-a")
    per_batch = [16 * sizes.layers * sizes.forward(1, tokens) for tokens in (by_name[1], by_name[3], limit)]
    memory = [of(str(tmp_path / "1.txt")), of(str(tmp_path / "3.txt")), of("nobody/has-this")]
    assert np.diff(memory).tolist() == np.diff(per_batch).tolist()
    assert min(np.diff(memory)) > 0
