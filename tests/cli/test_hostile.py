"""Hostile input from the command line: one sentence, exit code 2, nothing written, and no connection opened.

Every command and option is tried on wrong input. The parser's own tree says what there is to try, so that a
new option is covered by itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification, BertModel

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


LONG, ODD = "x" * 300, "odd\udcff\x1b[2J"  # longer than a file's name may be; bytes that are no UTF-8
NUMBERS = ("-1", "0", "99999999999999999999999", "nan")
WORDS = (LONG, ODD, "")


def leaves(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(names), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from leaves(child, (*names, name))


COMMANDS = dict(leaves(group))


@pytest.fixture(scope="module")
def inputs(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a fine-tune of it, texts, vectors, a map, a recipe and a fusion."""
    folder = tmp_path_factory.mktemp("inputs")
    sides = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**sides, max_position_embeddings=32))
    for name, step in (("model", 0.01), ("tuned", 1.0), ("other", 0.0)):
        model.save_pretrained(folder / name)
        for parameter in model.parameters():
            parameter.data += step * torch.randn_like(parameter)
        for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
            shutil.copy(minilm / file, folder / name / file)
    rows = [{"text": f"some words {n}", "label": "ab"[n % 2], "id": n} for n in range(24)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    random = np.random.default_rng(0)
    old = random.standard_normal((400, 4)).astype(np.float32)
    np.save(folder / "old.npy", old)
    np.save(folder / "new.npy", old @ random.standard_normal((4, 3)).astype(np.float32))
    entries = "".join(f"- model: {name}\n  parameters: {{weight: 1}}\n" for name in ("model", "tuned"))
    (folder / "recipe.yaml").write_text(f"merge_method: linear\nmodels:\n{entries}")
    series = random.standard_normal((60, 16)).astype(np.float32)
    np.savez(folder / "series.npz", x=series, label=(series.mean(1) > 0).astype(int))
    (folder / "noise").write_bytes(random.bytes(200))
    (folder / "empty").write_bytes(b"")
    with contextlib.chdir(folder):
        fitted = called("translate fit", "old.npy", "new.npy", "map", "--method", "ridge")
        started = called("merge start", "fusion", "--base", "model", "--method", "average")
    assert (fitted[0], started[0]) == (0, 0), (fitted, started)
    return folder


RIGHT: dict[str, list[str]] = {
    "transport": ["model", "other", "model", "OUT", "--data", "texts.jsonl", "--method", "identity"],
    "merge run": ["recipe.yaml", "OUT"],
    "merge plan": ["recipe.yaml"],
    "merge start": ["OUT", "--base", "model", "--method", "average"],
    "merge add": ["fusion", "nonesuch"],
    "merge remove": ["fusion", "nonesuch"],
    "merge status": ["fusion"],
    "translate fit": ["old.npy", "new.npy", "OUT", "--method", "ridge"],
    "translate plan": ["map", "old.npy", "OUT.npy"],
    "translate apply": ["map", "old.npy", "OUT.npy"],
    "translate check": ["map", "old.npy", "new.npy"],
    "translate embed": ["texts.jsonl", "OUT.parquet", "--model", "model"],
    "translate anchors": ["old.npy", "OUT.json"],
    "adapt fit": ["OUT", "--train", "texts.jsonl", "--backbone", "nonesuch"],
    "adapt predict": ["model", "texts.jsonl"],
    "adapt bound": ["model", "texts.jsonl"],
    "inspect": ["model"],
    "compare": ["model", "tuned", "--data", "texts.jsonl"],
    "extract": ["tuned", "model", "OUT", "--rank", "2"],
    "methods": [],
    "bench": ["nonesuch"],
    "demo": ["noise/below"],
    "cache": [],
}


def called(command: str, *arguments: str) -> tuple[int, str]:
    """Return exit code and standard error of a command that runs in this process."""
    out, errors = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main([*command.split(), *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, errors.getvalue()


def wrong(parameter: click.Parameter) -> tuple[str, ...]:
    """Return wrong values for one argument or option."""
    if isinstance(parameter.type, (click.types.IntParamType, click.types.FloatParamType)):
        return NUMBERS
    if isinstance(parameter.type, click.Choice):
        return ("nonesuch",)
    if isinstance(parameter, click.Argument) or isinstance(parameter.type, click.Path):
        return (*WORDS, "no/such/thing", "noise", "empty", "noise/below", ".")
    return (*WORDS, "no/such/thing", "noise")


def attempts(command: str) -> Iterator[list[str]]:
    """Yield argument lists, each with one wrong value where everything else is right."""
    yield RIGHT[command]
    place = 0
    for parameter in COMMANDS[command].params:
        if isinstance(parameter, click.Argument):
            for value in wrong(parameter):
                if command != "demo" or value not in ("", ".", "no/such/thing", ODD):
                    arguments = list(RIGHT[command])
                    arguments[place : place + 1] = [value]
                    yield arguments
            place += 1
        elif not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False):
            for value in wrong(parameter):
                yield [*RIGHT[command], parameter.opts[-1], *([value] * parameter.nargs)]


ADD = ("merge add", "fusion", "tuned", "--data", "texts.jsonl")
FIT = (
    "adapt fit",
    "adapted",
    "--train",
    "series.npz",
    "--backbone",
    "model",
    "--method",
    "nft",
    "--steps",
    "2",
)
# where the arguments above end before the work: others, and what has to be done before
LOCAL = RIGHT | {
    "transport": ["model", "tuned", "model", "OUT", "--data", "texts.jsonl", "--method", "identity"],
    "merge add": list(ADD[1:]),
    "merge remove": ["fusion", "tuned"],
    "adapt fit": list(FIT[1:]),
    "adapt predict": ["adapted", "series.npz"],
    "adapt bound": ["adapted", "series.npz"],
    "bench": [],
}
BEFORE = {"merge remove": [ADD], "adapt predict": [FIT], "adapt bound": [FIT]}


def test_every_command_is_tried():
    assert set(RIGHT) == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(RIGHT))
def test_wrong_input_ends_in_a_sentence(
    command: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(inputs)
    wrongly: dict[str, Any] = {}
    for number, arguments in enumerate(attempts(command)):
        given = [word.replace("OUT", str(tmp_path / f"out{number}")) for word in arguments]
        code, errors = called(command, *given)
        if code not in (0, 2) or "Traceback" in errors or (code == 2 and not errors.strip()):
            wrongly[" ".join(map(repr, arguments))] = (code, errors[-600:])
    assert not wrongly, "\n".join(f"{given}\n    {what[0]} {what[1]}" for given, what in wrongly.items())


@pytest.mark.parametrize("command", sorted(set(RIGHT) - {"demo"}))
def test_on_local_paths_nothing_asks_the_network(
    command: str, inputs: Path, tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
):
    """`transship demo` is run like this by its own tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(inputs, tmp_path / "inputs")
    monkeypatch.chdir(tmp_path / "inputs")
    for line in BEFORE.get(command, []):
        called(*line)
    code, errors = called(command, *(word.replace("OUT", str(tmp_path / "out")) for word in LOCAL[command]))
    # a model that was fitted without a source has no bound, which is said
    assert code == (2 if command == "adapt bound" else 0), errors


REPORTING = [name for name, leaf in COMMANDS.items() if any(each.name == "report" for each in leaf.params)]


@pytest.mark.parametrize("command", sorted(REPORTING))
def test_no_report_takes_the_place_of_what_is_read(
    command: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(inputs, tmp_path / "inputs")
    monkeypatch.chdir(tmp_path / "inputs")
    models = ["model"] if command == "merge run" else []  # what the recipe names
    read = [Path(word) for word in [*RIGHT[command], *models] if Path(word).exists()]
    files = [next(path.rglob("*.json")) if path.is_dir() else path for path in read]
    assert files
    for file in files:
        before = file.read_bytes()
        given = [word.replace("OUT", "out") for word in RIGHT[command]]
        code, errors = called(command, *given, "--report", str(file), "--force")
        assert (code, file.read_bytes()) == (2, before), (file, errors)
        assert "never written over" in errors, errors
    assert not Path("out").exists()


PICKLED = {
    "inspect": ["PICKLED"],
    "compare": ["PICKLED", "model", "--data", "texts.jsonl"],
    "transport": ["model", "PICKLED", "model", "OUT", "--data", "texts.jsonl", "--method", "identity"],
    "merge start": ["OUT", "--base", "PICKLED"],
    "merge add": ["fusion", "PICKLED", "--data", "texts.jsonl"],
    "translate embed": ["texts.jsonl", "OUT.parquet", "--model", "PICKLED"],
    "adapt fit": ["OUT", "--train", "series.npz", "--backbone", "PICKLED", "--method", "nft", "--steps", "2"],
    "extract": ["PICKLED", "model", "OUT", "--rank", "2"],
}


@pytest.mark.parametrize("command", PICKLED)
def test_a_folder_with_pickled_weights_alone_is_refused_everywhere(
    command: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(inputs / "tuned", tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickled" / "pytorch_model.bin")
    monkeypatch.chdir(inputs)
    places = {"PICKLED": str(tmp_path / "pickled"), "OUT": str(tmp_path / "out")}
    code, errors = called(command, *(places.get(word, word) for word in PICKLED[command]))
    assert (code, "--allow-pickle" in errors) == (2, True), errors
