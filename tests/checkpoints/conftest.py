"""What the tests of weights at rest share: hand-made files and tiny models saved by transformers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


def encode(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file, written the obvious way."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": CODES[str(array.dtype)],
            "shape": array.shape,
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture(scope="session")
def make_file() -> Callable[..., bytes]:
    return encode


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder with a config and one safetensors file, and return it."""

    def make(name: str, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any] | None = None) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(encode(tensors))
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Save a tiny random model of a family with transformers (once), and return its folder."""
    by_name: dict[str, Path] = {}

    def save(family: str) -> Path:
        if family not in by_name:
            import torch

            torch.manual_seed(len(by_name))
            by_name[family] = tmp_path_factory.mktemp("tiny") / family
            model = build(family)
            for parameter in model.parameters():  # transformers starts biases and some norms at 0 and 1
                torch.nn.init.normal_(parameter, std=0.2)
            model.save_pretrained(by_name[family])
        return by_name[family]

    return save


def build(family: str) -> Any:
    import transformers as t

    llama = {
        "vocab_size": 67,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    }
    small = {"vocab_size": 67, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family == "llama-tied":
        return t.LlamaForCausalLM(t.LlamaConfig(**llama, tie_word_embeddings=True))
    if family == "llama-untied":
        return t.LlamaForCausalLM(t.LlamaConfig(**llama, tie_word_embeddings=False))
    if family == "bert":
        return t.BertForMaskedLM(t.BertConfig(**small, intermediate_size=24, max_position_embeddings=32))
    if family == "bert-bare":
        return t.BertModel(t.BertConfig(**small, intermediate_size=24, max_position_embeddings=32))
    if family == "bert-classifier":
        config = t.BertConfig(**small, intermediate_size=24, max_position_embeddings=32, num_labels=3)
        return t.BertForSequenceClassification(config)
    if family == "roberta":
        config = t.RobertaConfig(**small, intermediate_size=24, max_position_embeddings=40)
        return t.RobertaForMaskedLM(config)
    if family == "t5":
        return t.T5ForConditionalGeneration(
            t.T5Config(vocab_size=67, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4)
        )
    if family == "vit":  # transformers 5 names its modules differently in memory and in the file
        small.pop("vocab_size")
        config = t.ViTConfig(**small, intermediate_size=24, image_size=8, patch_size=4, num_labels=3)
        return t.ViTForImageClassification(config)
    assert family == "gpt2"
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=67, n_positions=32, n_embd=16, n_layer=2, n_head=4))
