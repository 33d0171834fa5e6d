"""A fusion on disk and on the command line: kept, killed, resumed, refused."""

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load, load_file, save_file

from transship.cli import group
from transship.errors import OutputError, TransshipError
from transship.locks import locked
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.folder import kept_bytes

TREE = ("config.json", "fusion.json", "model.safetensors", "state", "heads", "tasks")


def digest(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def bert(family: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder of its own with a small BERT, its fine-tunes, and labelled texts for each task."""
    shutil.copytree(family("bert"), tmp_path / "models")
    random = np.random.default_rng(0)
    for number in range(3):
        rows = [
            {
                "text": " ".join(f"word{word}" for word in random.integers(0, 40, size=6)),
                "label": int(random.integers(0, 2 + number)),
                "split": "train" if row < 40 else "test",
            }
            for row in range(60)
        ]
        lines = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / "models" / f"data-{number}.jsonl").write_text(lines)
    return tmp_path / "models"


def run(*arguments: Any, code: int = 0) -> str:
    result = CliRunner().invoke(group, ["merge", *map(str, arguments)])
    if isinstance(result.exception, TransshipError):  # the command line's `main` prints it and exits with 2
        assert code == 2, result.exception
        return f"error: {result.exception}\n"
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_the_command_line_walks_from_start_to_report(bert: Path, tmp_path: Path):
    out = tmp_path / "out"
    text = run("start", out, "--base", bert / "base", "--method", "average", "--keep-inputs", 30)
    assert "no models yet" in text
    for number in range(3):
        run("add", out, bert / f"task-{number}", "--data", bert / f"data-{number}.jsonl")
    for name in TREE:
        assert (out / name).exists(), name
    record = json.loads(run("status", out, "--json"))
    assert [task["name"] for task in record["tasks"]] == ["task-0", "task-1", "task-2"]
    matrix = record["quality"]["heads"]["carried-polished"]["matrix"]
    assert [sum(value is not None for value in row) for row in matrix] == [1, 2, 3]
    assert record["bytes"]["inputs of task-1"] > 0
    assert "average on" in CliRunner().invoke(group, ["inspect", str(out)]).output
    shown = run("status", out, "--report", tmp_path / "report.html")
    assert "BWT" in shown
    assert "inputs of task-0" in shown
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "t-SNE" in page
    assert "last task is left out" in page
    run("remove", out, bert / "task-1")
    left = json.loads(run("status", out, "--json"))
    assert [task["name"] for task in left["tasks"]] == ["task-0", "task-2"]
    assert not (out / "tasks" / "task-1").exists()
    assert not (out / "inputs" / "task-1").exists()


def test_the_backbone_is_one_file_for_all_tasks_and_the_rest_is_small(bert: Path, tmp_path: Path):
    fusion = Fusion(bert / "base", "average", keep_inputs=10)
    sizes = []
    for number in range(3):
        fusion.add(bert / f"task-{number}", ["word1 word2", "word3"])
        fusion.save(tmp_path / "out", force=True)
        sizes.append(kept_bytes(tmp_path / "out"))
    files = {(tmp_path / "out/tasks" / f"task-{n}/backbone.safetensors").stat().st_ino for n in range(3)}
    assert len(files) == 1
    assert sizes[0]["model"] == sizes[2]["model"]
    assert sizes[0]["state"] == sizes[2]["state"]
    assert sizes[2]["tasks"] - sizes[0]["tasks"] < sizes[0]["model"]


def test_nothing_of_the_inputs_is_on_disk_unless_allowed(bert: Path, tmp_path: Path):
    texts = ["word1 word2 word3", "word4 word5"]
    Fusion(bert / "base", "average").add(bert / "task-0", texts).save(tmp_path / "out")
    assert not (tmp_path / "out" / "inputs").exists()
    assert not any(b"word1 word2" in content for content in digest(tmp_path / "out").values())
    assert not any(part.startswith("inputs") for part in kept_bytes(tmp_path / "out"))


@pytest.mark.parametrize("kind", ["text", "pair", "array", "image"])
def test_kept_inputs_come_back_as_they_were(kind: str, tmp_path: Path):
    from PIL import Image

    from transship.verbs.merge.fusion.store import read_kept, write_kept
    from transship.verbs.merge.fusion.task import Kept

    random = np.random.default_rng(0)
    inputs: Any = {
        "text": ["one", "twö"],
        "pair": [("a", "b"), ("c", "d")],
        "array": random.standard_normal((2, 3, 4)).astype(np.float32),
        "image": [Image.fromarray(random.integers(0, 255, (5, 6, 3), dtype=np.uint8)) for _ in range(2)],
    }[kind]
    kept = Kept(inputs, torch.randn(2, 4), torch.randn(2, 3), torch.tensor([1, 0]))
    write_kept(tmp_path / "kept", kept)
    again = read_kept(tmp_path / "kept")
    assert again is not None
    assert torch.equal(again.features, kept.features)
    assert again.labels is not None
    assert again.labels.tolist() == [1, 0]
    for first, other in zip(inputs, again.inputs, strict=True):
        assert np.array_equal(np.asarray(first), np.asarray(other))


def spoiled(bert: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    folder = bert / name
    shutil.copytree(bert / "task-1", folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


LAYER = "bert.encoder.layer.0.attention.self.query.weight"


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[LAYER][0, 0] = float("nan")


def _missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[LAYER]


def _extra(tensors: dict[str, torch.Tensor]) -> None:
    tensors["bert.encoder.layer.7.attention.self.query.weight"] = torch.zeros(3)


def _shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors[LAYER] = torch.zeros(3, 3)


def _stranger(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensors[name] = torch.randn_like(tensor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_nan, "holds a NaN or an infinity"),
        (_missing, "the file lacks"),
        (_extra, "has no place"),
        (_shape, "has shape [3, 3], and [16, 16] in"),
        (_stranger, "it is no fine-tune"),
    ],
)
def test_a_spoiled_fine_tune_is_one_sentence_and_the_folder_stays(
    change: Callable[[dict[str, torch.Tensor]], None], message: str, bert: Path, tmp_path: Path
):
    out = tmp_path / "out"
    Fusion(bert / "base", "average").add(bert / "task-0", ["word1", "word2"]).save(out)
    before = digest(out)
    text = run("add", out, spoiled(bert, "spoiled", change), "--data", bert / "data-1.jsonl", code=2)
    assert message in text
    assert text.count("\n") == 1
    assert digest(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "out"]


def test_another_family_the_same_model_and_another_base_are_refused(
    bert: Path, family: Callable[[str], Path], tmp_path: Path
):
    out = tmp_path / "out"
    Fusion(bert / "base", "average").add(bert / "task-0", ["word1", "word2"]).save(out)
    data = ("--data", bert / "data-0.jsonl")
    assert "added before, as 'task-0'" in run("add", out, bert / "task-0", *data, code=2)
    assert "has shape" in run("add", out, family("distilbert") / "task-0", *data, code=2)
    assert "it is no fusion" in run("add", bert / "base", bert / "task-0", *data, code=2)
    tensors = load_file(bert / "base" / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"] += 1
    save_file(tensors, bert / "base" / "model.safetensors", metadata={"format": "pt"})
    text = run("add", out, bert / "task-1", "--data", bert / "data-1.jsonl", code=2)
    assert "not the base that this fusion was started with" in text


def test_a_full_disk_is_one_sentence_and_the_folder_stays(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    Fusion(bert / "base", "average").add(bert / "task-0", ["word1", "word2"]).save(out)
    before = digest(out)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(OutputError, match="the disk has 10 B left"):
        Fusion.load(out).add(bert / "task-1", ["word1", "word2"]).save(out, force=True)
    assert digest(out) == before


def test_a_disk_that_fills_up_while_writing_is_one_sentence(bert: Path, tmp_path: Path, warm: Any):
    out = tmp_path / "out"
    Fusion(bert / "base", "average").add(bert / "task-0", ["word1", "word2"]).save(out)
    before = digest(out)
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from transship.cli import main\n"
        "sys.dont_write_bytecode = True\n"  # a file of bytecode that is cut short would spoil later runs
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        f"sys.argv = ['transship', 'merge', 'add', {str(out)!r}, {str(bert / 'task-1')!r}, "
        f"'--data', {str(bert / 'data-1.jsonl')!r}]\n"
        "main()"
    )
    result = warm.run("-c", code)
    assert result.returncode == 2, result.stderr
    assert "writing stopped" in result.stderr
    assert digest(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "out"]


def test_one_writer_at_a_time(bert: Path, tmp_path: Path):
    out = tmp_path / "out"
    Fusion(bert / "base", "average").add(bert / "task-0", ["word1", "word2"]).save(out)
    with locked(out):
        text = run("add", out, bert / "task-1", "--data", bert / "data-1.jsonl", code=2)
    assert "another process is changing it" in text
    run("add", out, bert / "task-1", "--data", bert / "data-1.jsonl")


@pytest.mark.slow
def test_a_killed_add_leaves_the_old_state_and_can_be_run_again(bert: Path, tmp_path: Path, warm: Any):
    out = tmp_path / "out"
    Fusion(bert / "base", "opcm", keep_inputs=20).add(bert / "task-0", ["word1", "word2"] * 5).save(out)
    command = ("-m", "transship", "merge", "add", out, bert / "task-1", "--data", bert / "data-1.jsonl")
    started = time.monotonic()
    shutil.copytree(out, tmp_path / "copy")
    again = warm.run(*command[:4], tmp_path / "copy", *command[5:])
    assert again.returncode == 0, again.stderr
    whole = time.monotonic() - started
    finished = digest(tmp_path / "copy")
    before = digest(out)
    random = np.random.default_rng(0)
    # the last tenth is when files are written and exchanged
    for share in (0.5, 0.9, *random.uniform(0.9, 1.05, size=3)):
        process = warm.start(*command)
        try:
            process.wait(timeout=share * whole)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        result = digest(out)
        if result != before:
            break
        assert Fusion.load(out).tasks[0].name == "task-0"
    if digest(out) == before:
        assert warm.run(*command).returncode == 0
    result = digest(out)
    assert set(result) == set(finished)
    for name, content in finished.items():
        if name.endswith(".safetensors"):  # the library orders a header's own notes by chance
            again, once = load(result[name]), load(content)
            assert again.keys() == once.keys()
            assert all(torch.equal(again[key], tensor) for key, tensor in once.items()), name
        elif name != "fusion.json":  # it holds times
            assert result[name] == content, name
    leftovers = [path.name for path in tmp_path.iterdir() if path.name not in ("models", "out", "copy")]
    for name in leftovers:
        assert name.startswith(".out")
    assert Fusion.load(out).save(out, force=True) == out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "models", "out"]


# an audit hook sees every file that Python opens to write, every new folder, link and rename
KILLED_ADD = """
import os, signal, sys
from transship.verbs.merge.fusion import Fusion

out, task, deadly, steps = *sys.argv[1:3], int(sys.argv[3]), 0

def count(event, arguments):
    global steps
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.mkdir", "os.link", "os.rename"):
        steps += os.path.dirname(out) in str(arguments[0])
        if steps == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

fusion = Fusion.load(out).add(task, ["word1", "word3"])
sys.addaudithook(count)
fusion.save(out, force=True)
print(steps)
"""


def test_a_kill_at_any_point_of_the_writing_leaves_the_old_state(bert: Path, tmp_path: Path, warm: Any):
    out, copy = tmp_path / "out", tmp_path / "copy"
    Fusion(bert / "base", "average").add(bert / "task-0", ["word1", "word2"]).save(out)
    shutil.copytree(out, copy)
    before = digest(out)
    whole = warm.run("-c", KILLED_ADD, copy, bert / "task-1", 0)
    assert whole.returncode == 0, whole.stderr
    steps = int(whole.stdout)
    assert steps > 10
    shutil.rmtree(copy)
    for deadly in (1, steps // 4, steps // 2, 3 * steps // 4, steps):
        killed = warm.run("-c", KILLED_ADD, out, bert / "task-1", deadly)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert digest(out) == before, deadly
    Fusion.load(out).add(bert / "task-1", ["word1", "word3"]).save(out, force=True)
    assert [task.name for task in Fusion.load(out).tasks] == ["task-0", "task-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "out"]


def test_test_rows_that_have_gone_leave_what_was_measured(bert: Path, tmp_path: Path):
    out = tmp_path / "out"
    run("start", out, "--base", bert / "base", "--method", "average", "--heads", "own")
    run("add", out, bert / "task-0", "--data", bert / "data-0.jsonl")
    (bert / "data-0.jsonl").unlink()
    run("add", out, bert / "task-1", "--data", bert / "data-1.jsonl")
    steps = json.loads(run("status", out, "--json"))["steps"]
    assert set(steps[0]["accuracy"]["own"]) == {"task-0"}
    assert set(steps[1]["accuracy"]["own"]) == {"task-1"}


def test_an_adapter_joins_a_language_model(family: Callable[[str], Path], tmp_path: Path):
    import peft
    import transformers

    folder = family("llama")
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "base")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, tensor in wrapped.named_parameters():
            if "lora_" in name:
                tensor.normal_(std=0.05)
    wrapped.save_pretrained(tmp_path / "adapter")
    fusion = Fusion(folder / "base", "average").add(tmp_path / "adapter", ["word1 word2"])
    merged = wrapped.merge_and_unload().state_dict()
    for name, tensor in fusion.parameters.items():
        torch.testing.assert_close(tensor, merged[name])


def test_an_adapter_with_a_head_of_its_own_joins_as_a_task(bert: Path, tmp_path: Path):
    import peft
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(bert / "base", num_labels=3)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    wrapped = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, tensor in wrapped.named_parameters():
            if "lora_" in name:
                tensor.normal_(std=0.05)
    wrapped.save_pretrained(tmp_path / "adapter")
    out = tmp_path / "out"
    run("start", out, "--base", bert / "base", "--method", "average", "--heads", "own")
    text = run("add", out, tmp_path / "adapter", "--data", bert / "data-1.jsonl")
    row = next(line for line in text.splitlines() if line.startswith("adapter "))
    assert row.split()[1] == "3"
    task = transformers.AutoModelForSequenceClassification.from_pretrained(out / "tasks" / "adapter")
    merged = wrapped.merge_and_unload().state_dict()
    for name, tensor in task.state_dict().items():
        torch.testing.assert_close(tensor, merged[name])
    assert "added before" in run("add", out, tmp_path / "adapter", "--data", bert / "data-1.jsonl", code=2)
    run("add", out, bert / "task-0", "--data", bert / "data-0.jsonl")
    run("remove", out, tmp_path / "adapter")
    assert [task["name"] for task in json.loads(run("status", out, "--json"))["tasks"]] == ["task-0"]


def test_a_fusion_in_memory_says_that_it_cannot_be_saved(toy: Any, tmp_path: Path):
    fusion = toy.join(Fusion(toy.base, "average", heads="own"), 0)
    with pytest.raises(TransshipError, match="its base was given in memory"):
        fusion.save(tmp_path / "out")


@pytest.mark.parametrize("name", ["inputs/t/secret", "tasks/t/LICENSE", "inputs/t"])
def test_a_link_out_of_a_fusion_at_any_depth_is_refused(name: str, tmp_path: Path):
    """What lies in a fusion goes along when a model joins, and a link would take a private file with it."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    place = tmp_path / "fusion" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "private" if name == "inputs/t" else tmp_path / "private" / "key")
    (tmp_path / "fusion" / "fusion.json").write_text("{}")
    sentence = run("status", tmp_path / "fusion", code=2)
    assert re.search(f"'?{name}'? is a link to a file outside the folder", sentence), sentence
