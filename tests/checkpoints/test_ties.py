"""Tied weights, as transformers itself ties them, and where a fine-tune has parted them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from transship.checkpoints import open as open_checkpoint

FAMILIES = ["llama-tied", "llama-untied", "bert", "bert-bare", "bert-classifier", "roberta", "t5", "gpt2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_ties_are_those_that_transformers_makes(family: str, tiny: Callable[[str], Path]):
    import transformers
    from transformers import AutoConfig, AutoModel

    folder = tiny(family)
    config = AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0], AutoModel)
    model = kind.from_pretrained(folder)
    places: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(parameter.data_ptr(), set()).add(name)
    expected = {frozenset(names) for names in places.values() if len(names) > 1}
    checkpoint = open_checkpoint(folder)
    by_name: dict[str, set[str]] = {}
    for alias, kept in checkpoint.tied.items():
        by_name.setdefault(kept, {kept}).add(alias)
    assert {frozenset(names) for names in by_name.values()} == expected
    assert set(checkpoint.tensors) | set(checkpoint.tied) == {
        name for names in places.values() for name in names
    }


def test_reading_an_alias_reads_the_tensor(tiny: Callable[[str], Path]):
    checkpoint = open_checkpoint(tiny("llama-tied"))
    np.testing.assert_array_equal(
        checkpoint.read("lm_head.weight"), checkpoint.read("model.embed_tokens.weight")
    )


TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.mark.parametrize(
    ("head", "declared", "tied"),
    [
        (TABLE, True, True),
        (TABLE + 1, True, False),
        (TABLE, False, False),
        (TABLE, None, True),
        (None, None, True),
        (None, False, False),
        (TABLE[:2], True, False),
    ],
)
def test_a_stored_head_is_tied_only_if_equal_and_not_untied(
    head: np.ndarray | None, declared: bool | None, tied: bool, make_folder: Callable[..., Path]
):
    config = {"architectures": ["XForCausalLM"]} | (
        {} if declared is None else {"tie_word_embeddings": declared}
    )
    tensors = {"model.embed_tokens.weight": TABLE} | ({} if head is None else {"lm_head.weight": head})
    checkpoint = open_checkpoint(make_folder("m", tensors, config))
    assert dict(checkpoint.tied) == ({"lm_head.weight": "model.embed_tokens.weight"} if tied else {})
    assert ("lm_head.weight" in checkpoint.tensors) == (head is not None and not tied)


def test_names_left_out_by_the_saving_library_are_aliases(tmp_path: Path):
    import torch
    from safetensors.torch import save_model

    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    save_model(model, str(tmp_path / "m.safetensors"))
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    assert len(checkpoint.tensors) == len(checkpoint.tied) == 1
    np.testing.assert_array_equal(checkpoint.read("0.weight"), checkpoint.read("1.weight"))


def test_a_silent_config_speaks_once_a_head_is_left_out(tiny: Callable[[str], Path], tmp_path: Path):
    """Llama does not tie by default: without the config's word a head left out would start at random."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    from transship.checkpoints import copied, write_checkpoint

    folder = tmp_path / "silent"
    shutil.copytree(tiny("llama-tied"), folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("tie_word_embeddings")
    (folder / "config.json").write_text(json.dumps(config))
    model = LlamaForCausalLM.from_pretrained(tiny("llama-tied"))
    save_file(
        {name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "model.safetensors"
    )
    base = open_checkpoint(folder)
    assert "lm_head.weight" in base.tied
    out = write_checkpoint(tmp_path / "out", copied(base), like=base)
    tokens = torch.tensor([[1, 2, 3]])
    loaded = LlamaForCausalLM.from_pretrained(out)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_the_text_part_of_a_config_is_heard(make_folder: Callable[..., Path]):
    config = {
        "architectures": ["XForConditionalGeneration"],
        "text_config": {"tie_word_embeddings": False, "vocab_size": 3},
    }
    assert not open_checkpoint(make_folder("m", {"model.embed_tokens.weight": TABLE}, config)).tied
