"""`--memory`: what it says is enough is enough under a real limit, and what is not is refused before work.

The limit is RLIMIT_DATA: the kernel refuses private writable memory beyond it, which is what anonymous
memory is; `ulimit -v` would also count mapped files and libraries, a gigabyte with torch. What libraries
reserve and never touch counts too, so the limit leaves it to them, as measured. Arrow takes its memory from
malloc, because its own allocator reserves a gigabyte at once. The peak of anonymous memory that was really
used must stay within what was allowed, with nothing added.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from transship.cli import group
from transship.errors import OptionError
from transship.numerics import parse_bytes

# what torch alone reserves and never touches: 35 MB, and 470 MB where it is built for GPUs
UNTOUCHED = """
import torch
with open("/proc/self/status") as file:
    status = dict(line.split(":") for line in file)
print(1024 * (int(status["VmData"].split()[0]) - int(status["RssAnon"].split()[0])))
"""
OTHERS = 120_000_000  # what the other libraries and the threads reserve
LAYERS = 2
LIMITED = """
import json, resource, sys, threading, time
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
peak, ended = 0, False
def watch():
    global peak
    while not ended:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("RssAnon"):
                    peak = max(peak, int(line.split()[1]) * 1024)
        time.sleep(0.005)
watcher = threading.Thread(target=watch)
watcher.start()
try:
    from transship.cli import group
    group.main(args=sys.argv[2:], standalone_mode=False)
finally:
    ended = True
    watcher.join()
print(json.dumps({"peak": peak}), file=sys.stderr)
"""
ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA and /proc are Linux's"),
]


def least(*words: object) -> str:
    """Return the least memory that a command asks for when it is allowed next to none."""
    with pytest.raises(OptionError, match=r"--memory: .* needs at least .* and may take 1\.0 MB") as refused:
        CliRunner().invoke(group, [*map(str, words), "--memory", "1MB"], catch_exceptions=False)
    hits = re.search(r"allow ([\d.]+ [kMG]B) or more", str(refused.value))
    assert hits is not None
    return hits[1].replace(" ", "")


@functools.cache
def reserved() -> int:
    """Return the bytes that the libraries of a command reserve and never touch, from above."""
    command = [sys.executable, "-c", UNTOUCHED]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=True)
    return int(done.stdout) + OTHERS


def limited(memory: str, *words: object) -> int:
    """Run a command that may take `memory` under a limit of the kernel's; return its peak."""
    limit = parse_bytes(memory) + reserved()
    command = [sys.executable, "-c", LIMITED, str(limit), *map(str, words), "--memory", memory]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{memory}: {done.stderr[-1000:]}"
    peak: int = json.loads(done.stderr.splitlines()[-1])["peak"]
    assert peak <= parse_bytes(memory)
    return peak


@pytest.fixture(scope="module")
def minilm(tmp_path_factory, minilm: Path) -> Path:
    """The first layers of MiniLM: what a command holds at once is the words' vectors and a layer or two."""
    value = tmp_path_factory.mktemp("cut") / "minilm"
    shutil.copytree(minilm, value)
    config = json.loads((value / "config.json").read_text())
    (value / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    kept = {
        name: tensor
        for name, tensor in load_file(minilm / "model.safetensors").items()
        if not name.startswith("encoder.layer.") or int(name.split(".")[2]) < LAYERS
    }
    save_file(kept, value / "model.safetensors", metadata={"format": "pt"})
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory, minilm: Path) -> Path:
    """Texts, series, paired vectors, and a model that differs a little from MiniLM."""
    root = tmp_path_factory.mktemp("memory")
    rng = np.random.default_rng(0)
    words = ["the", "ship", "of", "a", "bird", "sails", "over", "water", "while", "it", "rains", "on", "land"]
    texts = [" ".join(rng.choice(words, size=int(rng.integers(5, 60)))) for _ in range(64)]
    pq.write_table(pa.table({"id": list(range(64)), "text": texts}), root / "texts.parquet")
    series = [rng.normal(size=140).astype(np.float32).tolist() for _ in range(120)]
    pq.write_table(
        pa.table({"series": series, "label": [i % 3 for i in range(120)]}), root / "series.parquet"
    )
    hidden = rng.normal(size=(1000, 32))
    for name, width in (("old", 128), ("new", 160)):
        rows = (hidden @ rng.normal(size=(32, width)) + 0.3 * rng.normal(size=(1000, width))).astype(
            np.float32
        )
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width)
        pq.write_table(pa.table({"id": list(range(1000)), "vector": vectors}), root / f"{name}.parquet")
    shutil.copytree(minilm, root / "tuned")
    tensors = load_file(minilm / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.dtype.kind == "f":
            noise = rng.normal(size=tensor.shape).astype(tensor.dtype)
            tensors[name] = tensor + np.float32(0.01 * np.abs(tensor).mean()) * noise
    save_file(tensors, root / "tuned" / "model.safetensors", metadata={"format": "pt"})
    return root


def fit(folder: Path, minilm: Path) -> list[object]:
    return ["translate", "fit", folder / "old.parquet", folder / "new.parquet", folder / "map", "--force"]


def embed(folder: Path, minilm: Path) -> list[object]:
    texts, out = folder / "texts.parquet", folder / "vectors.parquet"
    return ["translate", "embed", "--model", minilm, texts, out, "--force"]


def compare(folder: Path, minilm: Path) -> list[object]:
    return ["compare", minilm, folder / "tuned", "--data", folder / "texts.parquet", "--inputs", "16"]


def transport(folder: Path, minilm: Path) -> list[object]:
    models = [minilm, folder / "tuned", minilm]
    options = ["--batches", "1", "--method", "theseus", "--strength", "1", "--force"]
    return ["transport", *models, folder / "moved", "--data", folder / "texts.parquet", *options]


def add(folder: Path, minilm: Path) -> list[object]:
    if not (folder / "fused").exists():
        words = ["merge", "start", folder / "fused", "--base", minilm, "--method", "regmean"]
        CliRunner().invoke(group, [*map(str, words)], catch_exceptions=False)
    data = ["--data", folder / "texts.parquet", "--inputs", "48"]
    return ["merge", "add", folder / "fused", folder / "tuned", *data]


def adapt(folder: Path, minilm: Path) -> list[object]:
    words = ["adapt", "fit", folder / "adapted", "--backbone", minilm, "--train", folder / "series.parquet"]
    return [*words, "--method", "nft", "--steps", "3", "--no-baseline", "--force"]


def merge(folder: Path, minilm: Path, method: str, **model: object) -> list[object]:
    recipe = {
        "merge_method": method,
        "base_model": str(minilm),
        "models": [{"model": str(folder / "tuned"), **model}],
    }
    (folder / f"{method}.yaml").write_text(json.dumps(recipe))  # JSON is YAML
    return ["merge", "run", folder / f"{method}.yaml", folder / f"merged-{method}", "--force"]


def merge_plain(folder: Path, minilm: Path) -> list[object]:
    return merge(folder, minilm, "ties", parameters={"weight": 0.5, "density": 0.5})


def merge_by_data(folder: Path, minilm: Path) -> list[object]:
    return merge(folder, minilm, "regmean", data={"path": str(folder / "texts.parquet"), "inputs": 48})


def merge_adapters(folder: Path, minilm: Path) -> list[object]:
    """Two adapters of a high rank, whose sum is cut: what is held at once is far above the interpreter."""
    rng, rank = np.random.default_rng(2), 256
    for name in ("lora-one", "lora-two"):
        (folder / name).mkdir(exist_ok=True)
        about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": str(minilm)}
        (folder / name / "adapter_config.json").write_text(
            json.dumps(about | {"target_modules": ["query", "key", "value"]})
        )
        factors = {}
        for layer, part in itertools.product(range(LAYERS), ("query", "key", "value")):
            module = f"base_model.model.encoder.layer.{layer}.attention.self.{part}"
            factors[f"{module}.lora_A.weight"] = rng.normal(size=(rank, 384)).astype(np.float32)
            factors[f"{module}.lora_B.weight"] = rng.normal(size=(384, rank)).astype(np.float32)
        save_file(factors, folder / name / "adapter_model.safetensors", metadata={"format": "pt"})
    models = [
        {"model": str(folder / name), "parameters": {"weight": 0.5}} for name in ("lora-one", "lora-two")
    ]
    recipe = {"merge_method": "linear", "base_model": str(minilm), "models": models, "lora_rank": 300}
    (folder / "adapters.yaml").write_text(json.dumps(recipe))
    return ["merge", "run", folder / "adapters.yaml", folder / "merged-adapters", "--force"]


def inspect(folder: Path, minilm: Path) -> list[object]:
    return ["inspect", minilm]


def inspect_update(folder: Path, minilm: Path) -> list[object]:
    return ["inspect", folder / "tuned", "--base", minilm]


def merge_plan(folder: Path, minilm: Path) -> list[object]:
    return ["merge", "plan", merge_plain(folder, minilm)[2]]


def start(folder: Path, minilm: Path) -> list[object]:
    return ["merge", "start", folder / "begun", "--base", minilm, "--force"]


def status(folder: Path, minilm: Path) -> list[object]:
    CliRunner().invoke(group, [*map(str, start(folder, minilm))], catch_exceptions=False)
    return ["merge", "status", folder / "begun"]


def methods(folder: Path, minilm: Path) -> list[object]:
    return ["methods"]


COMMANDS = [
    merge_plan,
    start,
    status,
    methods,
    fit,
    embed,
    compare,
    transport,
    add,
    adapt,
    merge_plain,
    merge_by_data,
    merge_adapters,
    inspect,
    inspect_update,
]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_asks_for_is_enough(
    command: Callable[[Path, Path], list[object]], folder: Path, minilm: Path
):
    words = command(folder, minilm)
    limited(least(*words), *words)


def test_leaving_a_fusion_is_bounded_like_joining_it(folder: Path, minilm: Path):
    runner = CliRunner()
    start = ["merge", "start", folder / "left", "--base", minilm, "--method", "average", "--heads", "own"]
    for words in (start, ["merge", "add", folder / "left", folder / "tuned"]):
        runner.invoke(group, [*map(str, words)], catch_exceptions=False)
    words = ["merge", "remove", folder / "left", folder / "tuned"]
    limited(least(*words), *words)


def test_an_index_is_counted_whole_since_it_is_built_in_memory(folder: Path):
    pytest.importorskip("faiss")
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(60_000, 128)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 128)
    pq.write_table(pa.table({"id": list(range(60_000)), "vector": vectors}), folder / "many.parquet")
    pairs = ["translate", "fit", folder / "old.parquet", folder / "new.parquet", folder / "linear", "--force"]
    CliRunner().invoke(group, [*map(str, pairs), "--method", "ridge"], catch_exceptions=False)
    words = ["translate", "apply", folder / "linear", folder / "many.parquet"]
    asked = {name: least(*words, folder / f"out.{name}") for name in ("parquet", "faiss")}
    assert parse_bytes(asked["faiss"]) - parse_bytes(asked["parquet"]) >= 2 * rows.shape[0] * 160 * 4
    limited(asked["faiss"], *words, folder / "out.faiss")


def test_apply_and_check_stay_within_what_they_ask_for(folder: Path, minilm: Path):
    words = fit(folder, minilm)
    CliRunner().invoke(group, [*map(str, words), "--method", "kernel"], catch_exceptions=False)
    for verb, options in (
        ("apply", [folder / "old.parquet", folder / "out.parquet", "--force"]),
        ("check", [folder / "old.parquet", folder / "new.parquet"]),
    ):
        words = ["translate", verb, folder / "map", *options]
        limited(least(*words), *words)


@pytest.mark.parametrize("options", [["--way", "kmeans"], ["--measure", "new.parquet"]])
def test_anchors_stay_within_what_they_ask_for(folder: Path, options: list[str]):
    named = [folder / word if word.endswith(".parquet") else word for word in options]
    words = ["translate", "anchors", folder / "old.parquet", folder / "anchors.parquet", "--count", "200"]
    words += [*named, "--force"]
    limited(least(*words), *words)


def test_predictions_and_the_bound_stay_within_what_they_ask_for(folder: Path, minilm: Path):
    rng = np.random.default_rng(1)
    words = [" ".join(rng.choice(["ship", "bird", "sail"], size=4)) for _ in range(60)]
    pq.write_table(pa.table({"text": words, "label": [i % 2 for i in range(60)]}), folder / "proxy.parquet")
    fitted = ["adapt", "fit", folder / "aligned", "--backbone", minilm, "--train", folder / "series.parquet"]
    options = ["--proxy", folder / "proxy.parquet", "--method", "fa", "--steps", "3", "--base", "rocket"]
    CliRunner().invoke(group, [*map(str, [*fitted, *options])], catch_exceptions=False)
    for verb in ("predict", "bound"):
        words = ["adapt", verb, folder / "aligned", folder / "series.parquet"]
        limited(least(*words), *words)


def test_less_memory_gives_smaller_batches_or_fewer_candidates_and_the_same_rows(folder: Path, minilm: Path):
    roomy, tight = folder / "roomy.parquet", folder / "tight.parquet"
    texts = ["translate", "embed", "--model", str(minilm), str(folder / "texts.parquet")]
    runner = CliRunner()
    runner.invoke(group, [*texts, str(roomy)], catch_exceptions=False)
    from transship.verbs.translate import embed as embedding

    seen: list[int] = []
    within = embedding.Encoder.within

    def watched(self, memory, source):
        quantity = within(self, memory, source)
        seen.append(quantity.batch_size)
        return quantity

    embedding.Encoder.within = watched
    try:
        few = least(*texts, tight)
        runner.invoke(group, [*texts, str(tight), "--memory", few], catch_exceptions=False)
    finally:
        embedding.Encoder.within = within
    assert seen[0] < 32
    first, other = (
        np.stack(pq.read_table(path)["vector"].to_numpy(zero_copy_only=False)) for path in (roomy, tight)
    )
    np.testing.assert_allclose(first, other, atol=1e-6)

    words = [*fit(folder, minilm), "--memory"]
    done = runner.invoke(group, [*map(str, words), least(*words[:-1])], catch_exceptions=False)
    assert "kernel is left out" in done.output
    assert runner.invoke(group, [*map(str, words), "8GB"], catch_exceptions=False).output.count("kernel ") > 0


def test_every_command_that_computes_takes_memory():
    def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                result = command.get_command(context, name)
                assert result is not None
                yield from leaves(result, f"{path} {name}")
        else:
            yield path, command

    without = [
        path
        for path, command in leaves(group, "transship")
        if not any("--memory" in option.opts for option in command.params)
    ]
    assert without == ["transship cache"], "which lists and removes files"
