"""What can be opened, from where, and what is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transship.checkpoints import Adapter, Checkpoint, copied, write_checkpoint
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError, MissingError, TransshipError

WEIGHTS = {"a.weight": np.ones((2, 3), np.float32), "b.weight": np.zeros(4, np.float32)}


def run(script: str, **environment: str) -> str:
    """Run Python code in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_real_model_opens_without_reading_it(minilm: Path):
    checkpoint = open_checkpoint(minilm)
    assert checkpoint.config["hidden_size"] == 384
    assert checkpoint.info("encoder.layer.0.attention.self.query.weight").shape == (384, 384)
    assert 22_000_000 < checkpoint.parameters < 23_000_000
    assert checkpoint.name == str(minilm)


MODELS = "bge-small distilbert-768 flan-t5-small granite-small minilm-l3 minilm-l6 minilm-l6-sre mpnet-base"


@pytest.mark.parametrize("name", [*MODELS.split(), "smollm2-135m"])
def test_every_local_model_opens(name: str, models_dir: Path):
    checkpoint = open_checkpoint(models_dir / name)
    assert checkpoint.parameters > 15_000_000
    assert checkpoint.dtype == "float32"


def test_one_file_is_a_checkpoint_without_config(tmp_path: Path, make_file: Callable[..., bytes]):
    (tmp_path / "some.safetensors").write_bytes(make_file(WEIGHTS))
    checkpoint = open_checkpoint(tmp_path / "some.safetensors")
    assert dict(checkpoint.config) == {}
    np.testing.assert_array_equal(checkpoint.read("a.weight"), WEIGHTS["a.weight"])


@pytest.fixture
def sharded(tmp_path: Path, make_file: Callable[..., bytes]) -> Path:
    for number, (name, array) in enumerate(WEIGHTS.items(), 1):
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(make_file({name: array}))
    write_index(
        tmp_path,
        {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"},
    )
    return tmp_path


def write_index(folder: Path, mapping: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))


def test_shards_are_one_checkpoint(sharded: Path):
    checkpoint = open_checkpoint(sharded)
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}
    np.testing.assert_array_equal(checkpoint.read("b.weight"), WEIGHTS["b.weight"])


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"a.weight": "model-00002-of-00002.safetensors"}, "'a.weight' is not in model-00002"),
        ({"c.weight": "model-00001-of-00002.safetensors"}, "'c.weight' is not in model-00001"),
        ({"a.weight": "model-00003-of-00002.safetensors"}, "no such file"),
        ({"a.weight": "../secret.safetensors"}, "outside its folder"),
        ({"a.weight": "/etc/passwd"}, "outside its folder"),
        ({"a.weight": ".."}, "outside its folder"),
        ({"a.weight": 3}, "no weight_map"),
        ({}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_a_wrong_index_is_refused(sharded: Path, mapping: object, message: str):
    write_index(sharded, mapping)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(sharded)


def test_a_tensor_that_the_index_forgot_is_refused(tmp_path: Path, make_file: Callable[..., bytes]):
    (tmp_path / "m.safetensors").write_bytes(make_file(WEIGHTS))
    write_index(tmp_path, {"a.weight": "m.safetensors"})
    with pytest.raises(CheckpointError, match=r"'b\.weight' is missing from the index"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}", b"{", b"[1]", b"[" * 100_000, b'{"a":' * 300 + b"1" + b"}" * 300]
)
def test_a_broken_config_is_refused(content: bytes, make_folder: Callable[..., Path]):
    folder = make_folder("m", WEIGHTS)
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"JSON|nested too deeply"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("quantisation", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "GPTQ"),
        ({"quant_method": "awq"}, "AWQ"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "something-new"}, "something-new"),
    ],
)
def test_quantised_weights_are_refused_by_name(
    quantisation: object, named: str, make_folder: Callable[..., Path]
):
    folder = make_folder("q", WEIGHTS, {"quantization_config": quantisation})
    with pytest.raises(CheckpointError, match=rf"quantised \({named}\); use the original weights"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "named"),
    [("l.qweight", "GPTQ or AWQ"), ("l.weight.absmax", "bitsandbytes"), ("l.SCB", "bitsandbytes")],
)
def test_quantised_tensors_give_a_silent_config_away(name: str, named: str, make_folder: Callable[..., Path]):
    with pytest.raises(CheckpointError, match=named):
        open_checkpoint(make_folder("q", {name: np.zeros(3, np.uint8)}, {"model_type": "llama"}))


def test_gguf_is_refused_as_file_under_any_name_and_as_folder(tmp_path: Path):
    for name in ("model.gguf", "model.safetensors"):
        (tmp_path / name).write_bytes(b"GGUF" + bytes(60))
        with pytest.raises(CheckpointError, match="GGUF"):
            open_checkpoint(tmp_path / name)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"GGUF.*use the original"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["texts.csv", "recipe.yaml", "vectors.parquet"])
def test_a_file_that_is_no_model_is_called_so(name: str, tmp_path: Path):
    (tmp_path / name).write_text("text,label\nhello,x\n")
    with pytest.raises(CheckpointError, match=rf"a \{Path(name).suffix} file holds no weights; give a model"):
        open_checkpoint(tmp_path / name)


def test_a_folder_without_weights_says_what_it_wants(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no weights.*model\.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "tf_model.h5").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="TensorFlow"):
        open_checkpoint(tmp_path)


def test_pickles_are_refused_and_then_loaded_weights_only(tmp_path: Path):
    shared = torch.arange(6.0).reshape(2, 3)
    state = {"embed.weight": shared, "lm_head.weight": shared, "half": torch.ones(3, dtype=torch.bfloat16)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    for reference in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(CheckpointError, match=r"is a pickle.*--allow-pickle"):
            open_checkpoint(reference)
        checkpoint = open_checkpoint(reference, allow_pickle=True)
        assert dict(checkpoint.tied) == {"lm_head.weight": "embed.weight"}
        np.testing.assert_array_equal(checkpoint.read("lm_head.weight"), shared.numpy())
        np.testing.assert_array_equal(checkpoint.floats("half"), [1, 1, 1])


def test_a_trainers_leftovers_are_no_model(tmp_path: Path, make_file: Callable[..., bytes]):
    torch.save({"state": torch.ones(2)}, tmp_path / "optimizer.pt")
    with pytest.raises(CheckpointError, match="no weights"):
        open_checkpoint(tmp_path, allow_pickle=True)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(make_file(WEIGHTS))
    torch.save({"w": torch.ones(2)}, tmp_path / "other.pt")
    assert isinstance(open_checkpoint(tmp_path, allow_pickle=True), Adapter)
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "adapter_model.safetensors").unlink()
    assert set(open_checkpoint(tmp_path, allow_pickle=True).tensors) == {"w"}
    torch.save({"w": torch.ones(2)}, tmp_path / "third.pt")
    with pytest.raises(CheckpointError, match=r"2 pickles .*give one of the files"):
        open_checkpoint(tmp_path, allow_pickle=True)


class Attack:
    def __reduce__(self):
        return os.mkdir, (os.environ["TRANSSHIP_TEST_TRAP"],)


@pytest.mark.parametrize("make", ["attack", "garbage", "list"])
def test_a_hostile_pickle_runs_nothing(make: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSSHIP_TEST_TRAP", str(tmp_path / "trap"))
    path = tmp_path / "model.pt"
    if make == "attack":
        path.write_bytes(pickle.dumps(Attack()))
    elif make == "garbage":
        path.write_bytes(b"\x80\x04garbage")
    else:
        torch.save([torch.ones(2)], path)
    with pytest.raises(CheckpointError, match=r"weights-only|no plain table"):
        open_checkpoint(path, allow_pickle=True)
    assert not (tmp_path / "trap").exists()


def test_code_in_a_model_folder_is_never_run(make_folder: Callable[..., Path], tmp_path: Path):
    folder = make_folder("m", WEIGHTS, {"auto_map": {"AutoModel": "modeling_trap.Trap"}})
    (folder / "modeling_trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    open_checkpoint(folder).fingerprint()
    assert not (tmp_path / "ran").exists()
    assert open_checkpoint(folder, trust_remote_code=True).trust_remote_code


def test_an_adapter_folder_is_an_adapter(tmp_path: Path, make_file: Callable[..., bytes]):
    (tmp_path / "adapter_model.safetensors").write_bytes(make_file(WEIGHTS))
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "b"})
    )
    adapter = open_checkpoint(tmp_path)
    assert isinstance(adapter, Adapter)
    assert (adapter.kind, adapter.base_name) == ("LORA", "b")


def test_what_does_not_exist_is_missing():
    for reference in ("no/such/folder/at/all", "./nothing", "nothing", " ", "bad\0name"):
        with pytest.raises(MissingError):
            open_checkpoint(reference)
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint("x" * 5000)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "tie_word_embeddings",
    "architectures",
    "text_config",
    "vocab_size",
    "model_type",
    "auto_map",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "weight_map",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=st.dictionaries(st.sampled_from(KEYS), anything), listing=anything)
def test_any_config_is_used_or_refused(config: object, listing: object, tmp_path: Path, make_file):
    folder = tmp_path / "m"
    folder.mkdir(exist_ok=True)
    names = {"model.embed_tokens.weight": "model.safetensors", "lm_head.weight": "model.safetensors"}
    table = np.ones((3, 2), np.float32)
    (folder / "model.safetensors").write_bytes(make_file(dict.fromkeys(names, table)))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(listing))
    try:
        checkpoint = open_checkpoint(folder)
        out = write_checkpoint(tmp_path / "out", copied(checkpoint), like=checkpoint, force=True, sync=False)
        assert set(open_checkpoint(out).tensors) == set(checkpoint.tensors)
    except TransshipError:
        pass


HUB = """
from transship.checkpoints import open
from transship.errors import TransshipError
for name in {names}:
    try:
        checkpoint = open(name)
        print(checkpoint.name, checkpoint.parameters, checkpoint.config["marker"])
    except TransshipError as error:
        print(type(error).__name__, error.where)
"""


def test_a_hub_id_opens_from_the_local_cache(tmp_path: Path, make_folder: Callable[..., Path]):
    cache = tmp_path / "hub" / "models--some-owner--some-model"
    for revision, marker in (("1" * 40, "main"), ("2" * 40, "branch")):
        folder = make_folder(marker, WEIGHTS, {"marker": marker})
        shutil.copytree(folder, cache / "snapshots" / revision)
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / ("main" if marker == "main" else "v2.0")).write_text(revision)
    names = ["some-owner/some-model", "some-owner/some-model@v2.0", f"some-owner/some-model@{'1' * 40}",
             "some-owner/absent", "some-owner/some-model@absent"]  # fmt: skip
    printed = run(
        HUB.format(names=names), HF_HUB_CACHE=str(tmp_path / "hub"), HF_HUB_OFFLINE="1"
    ).splitlines()
    assert printed == [
        "some-owner/some-model 10 main",
        "some-owner/some-model@v2.0 10 branch",
        f"some-owner/some-model@{'1' * 40} 10 main",
        "MissingError some-owner/absent",
        "MissingError some-owner/some-model@absent",
    ]


def test_reading_and_writing_import_neither_torch_nor_transformers(minilm: Path, tmp_path: Path):
    script = f"""
import sys
from transship.checkpoints import Update, applied, open, write_checkpoint
base = open({str(minilm)!r})
base.floats("embeddings.word_embeddings.weight", 0, 100)
update = Update.between(base, base) * 0.5
update.shape(update.names[0])
name = "encoder.layer.0.attention.self.query.weight"
plans = [plan for plan in applied(base, update) if plan.name == name]
write_checkpoint({str(tmp_path / "out")!r}, plans, like=base, dtype="bfloat16")
open({str(tmp_path / "out")!r}).read(name)
heavy = ("torch", "transformers", "safetensors", "huggingface_hub", "peft")
print([name for name in heavy if name in sys.modules])
"""
    assert run(script) == "[]"


def test_transship_open_is_this_one(minilm: Path):
    import transship

    assert isinstance(transship.open(minilm), Checkpoint)


@pytest.mark.parametrize("tensor", [torch.zeros(1).expand(10**12), torch.eye(3).to_sparse()])
def test_a_pickled_tensor_of_more_than_the_file_holds_is_refused(tensor: torch.Tensor, tmp_path: Path):
    torch.save({"a": tensor}, tmp_path / "a.bin")
    with pytest.raises(CheckpointError, match="'a' is sparse, or expanded from fewer numbers"):
        open_checkpoint(tmp_path / "a.bin", allow_pickle=True)
