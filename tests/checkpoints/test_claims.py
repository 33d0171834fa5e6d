"""What a config claims is held against the file before anything is built; no foreign code without leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from transship.activations import checkpoint_sites, load_model
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError, TransshipError

Damage = Callable[..., Path]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    sides = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(**sides, vocab_size=9), add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture
def changed(bert: Path, tmp_path: Path) -> Damage:
    def change(**entries: Any) -> Path:
        shutil.copytree(bert, tmp_path / "model")
        file = tmp_path / "model" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | entries), encoding="utf-8")
        return tmp_path / "model"

    return change


def sites(folder: Path) -> object:
    with open_checkpoint(folder) as opened:
        return checkpoint_sites(opened)


@pytest.mark.parametrize(
    "entries",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 1e9},
        {"vocab_size": 10**12},
        {"num_labels": 10**9},
        {"max_position_embeddings": 10**12},
        {"text_config": {"n_layers": 10**8}},
        {"depths": [2, 10**8]},
        {"blocks_per_stage": [2, 10**8]},
    ],
    ids=str,
)
@pytest.mark.parametrize("build", [sites, load_model])
def test_a_config_larger_than_its_file_is_refused_at_once(
    build: Callable[[Path], object], entries: dict[str, Any], changed: Damage
):
    with pytest.raises(CheckpointError, match=r"config\.json sets .* 21 tensors with sides up to 512"):
        build(changed(**entries))


def test_what_builds_nothing_may_be_large(changed: Damage):
    assert sites(changed(rope_theta=10**12, max_position_embeddings=10**7, initializer_factor=1e30))


def test_the_width_of_a_stage_is_no_number_of_stages(changed: Damage):
    assert sites(changed(embed_dim_per_stage=[96, 768]))


@pytest.mark.parametrize(
    "entries",
    [
        {"model_type": "nonesuch"},
        {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.Own"}},
        {"model_type": ["a"]},
        {"hidden_size": "x"},
        {"hidden_size": 0},
        {"num_attention_heads": 0},
        {"hidden_act": "nonesuch"},
        {"id2label": 5},
        {"dtype": 5},
    ],
    ids=str,
)
def test_a_config_that_makes_no_model_is_one_sentence(entries: dict[str, Any], changed: Damage):
    with pytest.raises(TransshipError, match=r"cannot be opened|needs code from its repository"):
        sites(changed(**entries))


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"]
)
@pytest.mark.parametrize(
    "value", ["someone/kernel", "flash_attention_2", {"text_config": "someone/kernel:fast"}]
)
@pytest.mark.parametrize("build", [sites, load_model])
def test_attention_from_the_hub_needs_leave(
    build: Callable[[Path], object], key: str, value: Any, changed: Damage, monkeypatch: pytest.MonkeyPatch
):
    def reached(*_: Any, **__: Any) -> None:
        raise AssertionError("the hub's kernel loader was reached")

    monkeypatch.setattr("transformers.integrations.hub_kernels.load_and_register_attn_kernel", reached)
    with pytest.raises(CheckpointError, match="which is code from the hub; remove the entry"):
        build(changed(**{key: value}))


def test_attention_of_torch_needs_none(changed: Damage):
    assert load_model(changed(_attn_implementation="eager")).model is not None


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_folder_with_pickles_alone_does_not_run(name: str, bert: Path, tmp_path: Path):
    shutil.copy(bert / "config.json", tmp_path)
    torch.save(BertModel.from_pretrained(bert).state_dict(), tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name} is a pickle, which can run code"):
        load_model(tmp_path)


def test_a_pickle_that_was_opened_with_leave_runs(bert: Path, tmp_path: Path):
    shutil.copy(bert / "config.json", tmp_path)
    torch.save(BertModel.from_pretrained(bert).state_dict(), tmp_path / "pytorch_model.bin")
    with open_checkpoint(tmp_path, allow_pickle=True) as opened:
        assert load_model(opened).model is not None
