"""Two processes of one launch (gloo) give what one process gives; one that dies takes nothing with it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from transship import parallel
from transship.activations.models import load_model
from transship.errors import OptionError

SCRIPT = Path(__file__).parent / "launched.py"
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
# the derivative by a key's bias is zero but for rounding, whose sign Adam follows
NOISE = ("multitask", "adamerging", "concrete", "body.")
TOLERANCE = {"moments": 1e-10, "transports": 1e-6, "merges": 1e-4, "fusions": 1e-4, "adaptations": 1e-4}


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TRANSSHIP_CACHE": str(folder / "cache")}


def launch(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start a launcher as users do; where it is not what is tested, `warm` launches in less time."""
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module")
def work() -> ModuleType:
    spec = importlib.util.spec_from_file_location("launched", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(work: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("launched")
    work.make(output)
    return output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")
def test_two_processes_give_what_one_gives(work: ModuleType, folder: Path, warm: Any):
    """One test, since all of the work is one launch: apart, each core might have to launch it."""
    done = warm.run(SCRIPT, folder, launch=2, cwd=folder, env=environment(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    for name, tolerance in TOLERANCE.items():
        alone = work.WORK[name](folder)
        for rank in range(2):
            result = load_file(folder / f"{name}-{rank}.safetensors")
            assert result.keys() == alone.keys(), name
            for key, tensor in alone.items():
                if key.startswith(NOISE) and key.endswith("key.bias"):
                    continue
                distance = float((result[key].double() - tensor.double()).norm())
                assert distance <= tolerance * max(float(tensor.double().norm()), 1e-12), f"{name}: {key}"


def transport(folder: Path, out: str, *more: str) -> list[str]:
    places = [str(folder / name) for name in ("source", "tuned", "target", out)]
    given = ["--data", str(folder / "texts.parquet"), "--batches", "10", "--batch-size", "4"]
    return ["transport", *places, *given, "--method", "theseus", "--strength", "1", *more]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_the_first_process_writes_and_prints_and_the_others_are_silent(folder: Path, tmp_path: Path):
    done = launch(*ACCELERATE, "-m", "transship", *transport(folder, "shared", "--json"), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["out"] == str(folder / "shared")
    assert run(transport(folder, "single", "--prepared", str(tmp_path / "prepared"))).exit_code == 0
    for name, tensor in weights(folder / "single").items():
        torch.testing.assert_close(weights(folder / "shared")[name], tensor)
    assert not list(folder.glob(".*")), "a draft was left"


def compare(folder: Path, out: Path) -> list[str]:
    models = [str(folder / name) for name in ("source", "target")]
    return ["compare", *models, "--data", str(folder / "texts.parquet"), "--inputs", "40"]


def merge(folder: Path, out: Path) -> list[str]:
    models = [
        {"model": str(folder / name), "data": {"path": str(folder / f"{data}.parquet"), "inputs": 20}}
        for name, data in (("tuned", "texts"), ("other", "others"))
    ]
    recipe = {"merge_method": "regmean", "base_model": str(folder / "source"), "models": models}
    (out.parent / "recipe.yaml").write_text(json.dumps(recipe))  # JSON is YAML
    return ["merge", "run", str(out.parent / "recipe.yaml"), str(out)]


def adapt(folder: Path, out: Path) -> list[str]:
    random = np.random.default_rng(3)
    table = {"series": random.normal(size=(40, 32)).tolist(), "label": [row % 2 for row in range(40)]}
    pq.write_table(pa.table(table), out.parent / "series.parquet")
    given = ["--backbone", str(folder / "base"), "--train", str(out.parent / "series.parquet")]
    options = ["--method", "nft", "--steps", "4", "--batch-size", "7", "--tokens", "8", "--no-baseline"]
    return ["adapt", "fit", str(out), *given, *options]


def numbers(value: Any) -> list[float]:
    """Return the numbers of a JSON document in their order, times and places left out."""
    if isinstance(value, dict):
        return [
            number
            for key in sorted(value)
            if key not in ("seconds", "options")
            for number in numbers(value[key])
        ]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.slow
def test_every_verb_gives_two_processes_what_it_gives_one(folder: Path, tmp_path: Path, warm: Any):
    """With transport's, the four verbs that run models; their methods run under torchrun above."""
    commands, places = (compare, merge, adapt), {name: tmp_path / name for name in ("alone", "shared")}
    for place in places.values():
        place.mkdir()
    words = {
        name: [[*command(folder, place / command.__name__), "--json"] for command in commands]
        for name, place in places.items()
    }
    (tmp_path / "words.json").write_text(json.dumps(words["shared"]))
    asked = (SCRIPT, "commands", tmp_path / "words.json")
    done = warm.run(*asked, launch=2, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    shared = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(shared) == len(commands)
    alone = []
    for each in words["alone"]:
        ended = run(each)
        assert ended.exit_code == 0, ended.output
        alone.append(json.loads(ended.stdout))
    for place in places.values():
        assert not list(place.glob(".*")), "a draft was left"
    assert numbers(shared[0]) == pytest.approx(numbers(alone[0]), rel=1e-6, abs=1e-9)
    assert len(numbers(shared[0])) > 20
    for command in (merge, adapt):
        by_name = {name: tensors(place / command.__name__) for name, place in places.items()}
        assert by_name["shared"].keys() == by_name["alone"].keys()
        for name, tensor in by_name["alone"].items():
            if tensor.is_floating_point() and not name.endswith("key.bias"):
                distance = float((by_name["shared"][name].double() - tensor.double()).norm())
                assert distance <= 1e-4 * max(float(tensor.double().norm()), 1e-12), name


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    by_name: dict[str, torch.Tensor] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        by_name |= {f"{file.name} {name}": tensor for name, tensor in load_file(file).items()}
    assert by_name
    return by_name


@pytest.mark.slow
def test_the_page_of_a_continual_merge_is_made_by_the_first_process_alone(
    folder: Path, tmp_path: Path, warm: Any
):
    """It runs the merged model again, when the others have left off."""
    options = ["--method", "average", "--heads", "carried", "--keep-inputs", "20"]
    begun = run(["merge", "start", str(tmp_path / "fused"), "--base", str(folder / "base"), *options])
    assert begun.exit_code == 0, begun.output
    words = ["merge", "add", str(tmp_path / "fused"), str(folder / "tuned")]
    words += ["--data", str(folder / "texts.parquet"), "--report", str(tmp_path / "page.html"), "--json"]
    done = warm.run("-m", "transship", *words, launch=2, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(json.loads(done.stdout)["tasks"]) == 1
    assert "Merged and own features" in (tmp_path / "page.html").read_text()


def test_a_mistake_is_one_sentence_and_one_exit_code(folder: Path, tmp_path: Path, warm: Any):
    asked = ["compare", folder / "source", folder / "nowhere", "--data", folder / "texts.parquet"]
    done = warm.run("-m", "transship", *asked, launch=2, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode != 0
    assert "exitcode  : 2 " in done.stderr, done.stderr[-3000:]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "nowhere" in errors[0]
    ours = str(Path(parallel.__file__).parent)  # a checkout may be in a folder of that name too
    assert ours not in done.stderr, "a traceback of ours"


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_others_and_its_saved_shards_are_used_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Any
):
    asked = transport(folder, "lost", "--prepared", str(tmp_path / "prepared"))
    done = warm.run(SCRIPT, "die", "4", *asked, launch=2, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr[-3000:]
    assert "another process ended before the work was done" in errors[0]
    assert not (folder / "lost").exists()
    assert not list(folder.glob(".*")), "a draft was left"
    # a process that ends between a state and the removal of the one before it leaves both, or a part of one
    files = (tmp_path / "prepared").rglob("state.json")
    states = [place for place in files if place.parent.suffix != ".part"]
    kept = len({unit for state in states for unit in json.loads(state.read_text())["units"]})
    assert kept >= 2  # of five; the killed process's finished unit is among them
    assert any(place.parent.name.startswith("state-001") for place in states)

    from transship.activations.step import Stepper

    steps: list[Any] = []
    step = Stepper.step
    monkeypatch.setattr(Stepper, "step", lambda *given: steps.append(given) or step(*given))
    again = run(asked)
    assert again.exit_code == 0, again.output
    assert len(steps) == 10 - 2 * kept
    assert run(transport(folder, "whole", "--prepared", str(tmp_path / "other"))).exit_code == 0
    assert len(steps) == 20 - 2 * kept
    for name, tensor in weights(folder / "whole").items():
        torch.testing.assert_close(weights(folder / "lost")[name], tensor)


@pytest.mark.slow
@pytest.mark.parametrize("step", [4])  # the last: the others wait at the end
def test_a_process_that_is_killed_while_training_is_one_sentence_and_leaves_nothing(
    folder: Path, tmp_path: Path, step: int, warm: Any
):
    asked = (SCRIPT, "die", step, *adapt(folder, tmp_path / "out"))
    done = warm.run(*asked, launch=2, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr[-3000:]
    assert "another process ended before the work was done" in errors[0]
    assert not (tmp_path / "out").exists()


def run(arguments: list[str]) -> Any:
    from transship.cli import group

    return CliRunner().invoke(group, arguments)


def test_without_a_launch_everything_is_this_process_and_unchanged():
    assert (parallel.rank(), parallel.size(), parallel.is_main()) == (0, 1, True)
    assert all(parallel.mine(number) for number in range(5))
    assert list(parallel.share(range(5))) == [0, 1, 2, 3, 4]
    assert parallel.gather(3) == [3]
    assert parallel.agreed("x") == "x"
    assert parallel.device("cuda") == "cuda"
    tensor = torch.arange(3.0)
    parallel.add_up([tensor])
    assert tensor.tolist() == [0.0, 1.0, 2.0]
    rows = parallel.rows_of_all(3, [([2, 0], torch.tensor([[1.0], [2.0]])), ([1], torch.tensor([[3.0]]))])
    assert rows.tolist() == [[2.0], [3.0], [1.0]]


def test_processes_that_do_not_find_one_another_say_so_in_one_sentence(tmp_path: Path, warm: Any):
    alone = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "", "MASTER_PORT": ""}
    asked = ("-m", "transship", "compare", "a", "b", "--data", "d")
    done = warm.run(*asked, cwd=tmp_path, env=environment(tmp_path) | alone)
    assert done.returncode == 2, done.stderr[-3000:]
    assert done.stderr.startswith(
        "error: RANK=1 WORLD_SIZE=2: the processes of this launch do not find one another"
    )
    assert "Traceback" not in done.stderr


def test_one_process_can_work_apart_from_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parallel, "_WORLD", parallel._World(1, 3))
    with parallel.apart():
        assert (parallel.rank(), parallel.size(), parallel.is_main()) == (0, 1, True)
        assert parallel.gather(5) == [5]  # would wait for two others
    assert (parallel.rank(), parallel.size()) == (1, 3)


def test_somebody_speaks_where_the_store_went_with_the_first_process(monkeypatch: pytest.MonkeyPatch):
    """No process group at all stands for one whose store is gone: asking it fails in the same way."""
    import signal

    before = signal.getsignal(signal.SIGTERM)
    for rank, right in ((0, True), (1, True), (2, False)):
        monkeypatch.setattr(parallel, "_WORLD", parallel._World(rank, 3))
        assert parallel.speaks() is right
    signal.signal(signal.SIGTERM, before)


def test_a_command_that_is_not_shared_is_the_first_process_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from transship.cli import main

    for rank, right in (("1", False), ("0", True)):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        main(["methods", "transport"])
        assert bool(capsys.readouterr().out) is right
        assert not parallel.launched()


def test_the_device_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch):
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert parallel.device("auto") == device
    parallel.require_device("auto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_here_is_one_sentence():
    parallel.require_device("cpu")
    for name, message in (("cuda", "this machine has no cuda; choose cpu"), ("abacus", "no device 'abacus'")):
        with pytest.raises(OptionError, match=message):
            load_model(torch.nn.Linear(2, 2), device=name)
