"""Hostile input from the command line: one sentence, exit code 2, nothing written."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from transship.cli import group, main

ENTRY = {"dtype": "F32", "shape": [2, 2]}


def weights(path: Path, header: dict[str, object], data: bytes = b"\0" * 32) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture(scope="module")
def bert(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random BERT with MiniLM's own tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(**sizes), add_pooling_layer=False).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(minilm / name, folder / name)
    return folder


def truncated(folder: Path, bert: Path) -> list[object]:
    file = folder / "cut.safetensors"
    file.write_bytes((bert / "model.safetensors").read_bytes()[:1000])
    return ["inspect", file]


def lying_length(folder: Path, bert: Path) -> list[object]:
    file = folder / "lie.safetensors"
    file.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    return ["inspect", file]


def overlapping(folder: Path, bert: Path) -> list[object]:
    header = {"a": ENTRY | {"data_offsets": [0, 16]}, "b": ENTRY | {"data_offsets": [8, 24]}}
    return ["inspect", weights(folder / "overlap.safetensors", header)]


def wrong_shard_index(folder: Path, bert: Path) -> list[object]:
    model = folder / "sharded"
    shutil.copytree(bert, model)
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"not.there": "model-00001-of-00001.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return ["inspect", model]


def adapter_for_another_base(folder: Path, bert: Path) -> list[object]:
    adapter = folder / "adapter"
    adapter.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{module}.lora_A.weight": torch.zeros(2, 8), f"{module}.lora_B.weight": torch.zeros(8, 2)}
    save_file(factors, adapter / "adapter_model.safetensors")
    return ["inspect", adapter, "--base", bert]


def nan_weights(folder: Path, bert: Path) -> list[object]:
    model = folder / "nan"
    shutil.copytree(bert, model)
    tensors = load_file(model / "model.safetensors")
    tensors["encoder.layer.0.output.dense.weight"][3, 4] = float("nan")
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    (folder / "texts.txt").write_text("one text\nanother text\n")
    return ["compare", bert, model, "--data", folder / "texts.txt", "--report", folder / "page.html"]


def empty_data(folder: Path, bert: Path) -> list[object]:
    (folder / "texts.txt").write_text("")
    return ["compare", bert, bert, "--data", folder / "texts.txt", "--report", folder / "page.html"]


def text_in_no_utf8(folder: Path, bert: Path) -> list[object]:
    (folder / "texts.txt").write_bytes(b"good\nbad \xff\xfe\n")
    return ["compare", bert, bert, "--data", folder / "texts.txt", "--report", folder / "page.html"]


def pickled_weights(folder: Path, bert: Path) -> list[object]:
    torch.save({"a": torch.zeros(2)}, folder / "model.bin")
    return ["inspect", folder / "model.bin"]


def missing_column(folder: Path, bert: Path) -> list[object]:
    (folder / "texts.csv").write_text("text,label\nfine,1\n")
    return ["compare", bert, bert, "--data", folder / "texts.csv", "--column", "txet"]


CASES: list[tuple[Callable[[Path, Path], list[object]], str]] = [
    (truncated, "cut.safetensors"),
    (lying_length, "lie.safetensors"),
    (overlapping, "overlap.safetensors"),
    (wrong_shard_index, "not.there"),
    (adapter_for_another_base, "q_proj"),
    (nan_weights, "NaN"),
    (empty_data, "texts.txt"),
    (text_in_no_utf8, "UTF-8"),
    (pickled_weights, "--allow-pickle"),
    (missing_column, "text"),
]


@pytest.mark.parametrize(("make", "names"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_hostile_input_is_one_sentence_and_writes_nothing(
    make: Callable[[Path, Path], list[object]],
    names: str,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    arguments = [str(argument) for argument in make(tmp_path, bert)]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert names in sentence
    assert sorted(tmp_path.rglob("*")) == before


def test_an_error_of_the_system_without_a_number_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_: object, **__: object) -> None:
        raise OSError("500 requested and 0 written")  # numpy on a full disk

    monkeypatch.setattr(group, "main", full)
    with pytest.raises(SystemExit) as left:
        main(["methods"])
    assert left.value.code == 2
    assert "the system refuses (500 requested and 0 written)" in capsys.readouterr().err
