"""Adapters of fine-tunes: the best approximation, what PEFT makes of it, what is kept in full."""

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from click.testing import CliRunner

from transship import checkpoints
from transship.cli import group
from transship.errors import CheckpointError, OptionError

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
KINDS: dict[str, tuple[Any, Any]] = {
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(intermediate_size=24, num_key_value_heads=1, **SIZES),
    ),
    "bert": (transformers.BertModel, transformers.BertConfig(intermediate_size=24, **SIZES)),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(
            vocab_size=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
        ),
    ),
    "qwen2": (
        transformers.Qwen2ForCausalLM,
        transformers.Qwen2Config(intermediate_size=24, num_key_value_heads=1, **SIZES),
    ),
}


@pytest.fixture(params=KINDS)
def models(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """The class, and a folder with a base and a full fine-tune of it."""
    kind, config = KINDS[request.param]
    torch.manual_seed(0)
    model = kind(config)
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "tuned")
    return kind, tmp_path


def merged(kind: Any, folder: Path, adapter: Path) -> dict[str, torch.Tensor]:
    wrapped = peft.PeftModel.from_pretrained(kind.from_pretrained(folder / "base"), adapter)
    return dict(wrapped.merge_and_unload().state_dict())


def test_peft_makes_of_the_adapter_what_the_best_approximation_is(models: tuple[Any, Path]):
    kind, folder = models
    with checkpoints.open(folder / "base") as base, checkpoints.open(folder / "tuned") as tuned:
        extraction = checkpoints.extract(tuned, base, rank=3)
        extraction.save(folder / "adapter")
    before, after = (dict(kind.from_pretrained(folder / name).state_dict()) for name in ("base", "tuned"))
    output = merged(kind, folder, folder / "adapter")
    ranks = {each.name.split(".", 1)[-1]: each.rank for each in extraction.tensors}
    assert {rank for rank in ranks.values() if rank} == {3}
    for name, tensor in output.items():
        change = (after[name] - before[name]).double()
        if ranks.get(name.split(".", 1)[-1]) is not None:
            u, values, vt = torch.linalg.svd(change, full_matrices=False)
            change = (u[:, :3] * values[:3]) @ vt[:3]
        torch.testing.assert_close((tensor - before[name]).double(), change, atol=1e-6, rtol=1e-5)


def test_our_reader_adds_what_peft_adds(models: tuple[Any, Path]):
    _, folder = models
    with checkpoints.open(folder / "base") as base, checkpoints.open(folder / "tuned") as tuned:
        extraction = checkpoints.extract(tuned, base, energy=0.8)
        extraction.save(folder / "adapter")
        again = checkpoints.Update.from_adapter(checkpoints.open(folder / "adapter"), base)
        for each in extraction.tensors:
            np.testing.assert_allclose(again.dense(each.name), extraction.update.dense(each.name), atol=1e-6)
    assert all(each.energy >= 0.8 for each in extraction.tensors)
    assert extraction.energy < 1


def test_a_change_of_low_rank_is_kept_exactly_at_the_smallest_rank_that_does(tmp_path: Path):
    kind, config = KINDS["llama"]
    torch.manual_seed(0)
    model = kind(config)
    model.save_pretrained(tmp_path / "base")
    weight = model.model.layers[1].mlp.up_proj.weight
    change = torch.randn(24, 2) @ torch.randn(2, 16) * 0.1
    with torch.no_grad():
        weight.add_(change)
    model.save_pretrained(tmp_path / "tuned")
    with checkpoints.open(tmp_path / "base") as base, checkpoints.open(tmp_path / "tuned") as tuned:
        extraction = checkpoints.extract(tuned, base, energy=0.9999)
    (only,) = extraction.tensors
    assert (only.name, only.rank) == ("model.layers.1.mlp.up_proj.weight", 2)
    np.testing.assert_allclose(extraction.update.dense(only.name), change.numpy(), atol=1e-5)


def test_inputs_that_never_occur_cost_no_rank(tmp_path: Path):
    """With second moments of the inputs, a change that no input sees is what is cut first."""
    kind, config = KINDS["llama"]
    torch.manual_seed(0)
    model = kind(config)
    model.save_pretrained(tmp_path / "base")
    name = "model.layers.0.mlp.up_proj.weight"
    seen, unseen = torch.zeros(24, 16), torch.zeros(24, 16)
    seen[0, 0], unseen[1, 1] = 0.1, 1.0
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.add_(seen + unseen)
    model.save_pretrained(tmp_path / "tuned")
    inputs = np.diag([1.0] + [0.0] * 15)
    with checkpoints.open(tmp_path / "base") as base, checkpoints.open(tmp_path / "tuned") as tuned:
        plain = checkpoints.extract(tuned, base, rank=1).update.dense(name)
        aware = checkpoints.extract(tuned, base, rank=1, covariances={name: inputs}).update.dense(name)
    np.testing.assert_allclose(plain, unseen.numpy(), atol=1e-4)
    np.testing.assert_allclose(aware[:, 0], seen.numpy()[:, 0], atol=1e-4)


def test_the_command_prints_the_energy_of_each_tensor(models: tuple[Any, Path]):
    _, folder = models
    names = [str(folder / name) for name in ("tuned", "base", "adapter")]
    result = CliRunner().invoke(group, ["extract", *names, "--rank", "2"])
    assert result.exit_code == 0, result.output
    assert "of the squared change" in result.output
    assert (folder / "adapter" / "adapter_config.json").is_file()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one of rank and energy is needed"),
        ({"rank": 0}, "keeps nothing"),
        ({"energy": 1.5}, "is no share"),
    ],
)
def test_what_makes_no_adapter_is_refused(tmp_path: Path, given: dict[str, Any], message: str):
    kind, config = KINDS["llama"]
    kind(config).save_pretrained(tmp_path)
    with checkpoints.open(tmp_path) as base, pytest.raises(OptionError, match=message):
        checkpoints.extract(base, base, **given)


def test_a_model_of_another_base_has_no_adapter(tmp_path: Path):
    kind, config = KINDS["llama"]
    for name in ("base", "stranger"):
        kind(config).save_pretrained(tmp_path / name)
    base, stranger = (checkpoints.open(tmp_path / name) for name in ("base", "stranger"))
    with pytest.raises(CheckpointError, match="no fine-tune of it; check the order of arguments"):
        checkpoints.extract(stranger, base, rank=1)


def test_a_model_that_is_its_base_has_no_adapter(tmp_path: Path):
    kind, config = KINDS["llama"]
    kind(config).save_pretrained(tmp_path)
    with checkpoints.open(tmp_path) as base, pytest.raises(CheckpointError, match="equals its base"):
        checkpoints.extract(base, base, rank=1)
