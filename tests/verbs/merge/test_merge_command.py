"""`transship merge run` and `merge plan`, as a user types them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from transship.cli.merge import command
from transship.errors import OptionError
from transship.verbs.merge.api import Merge
from transship.verbs.merge.plan import plan
from transship.verbs.merge.write import shard_bytes

TEXT = "merge_method: linear\nmodels: [{model: a}, {model: b}]\nparameters: {weight: 0.5}\n"


@pytest.fixture
def run(toys: Callable[..., None]) -> Callable[..., object]:
    Path("recipe.yaml").write_text(TEXT)
    return lambda *arguments: CliRunner().invoke(command, list(arguments))


def test_plan_prints_what_will_happen(run):
    result = run("plan", "recipe.yaml")
    assert result.exit_code == 0
    assert "tensors: 6 merged, 0 copied" in result.stdout
    assert len(json.loads(run("plan", "recipe.yaml", "--json").stdout)["tensors"]) == 6


def test_run_writes_the_folder_and_says_where(run):
    result = run("run", "recipe.yaml", "out", "--report", "page.html")
    assert result.exit_code == 0
    assert result.stdout == "out\n"
    assert {path.name for path in Path("out").iterdir()} >= {"config.json", "model.safetensors", "README.md"}
    assert Path("page.html").is_file()
    outcome = run("run", "recipe.yaml", "out", "--force", "--json", "--seed", "3", "--memory", "1GB")
    assert json.loads(outcome.stdout)["folder"] == "out"


@pytest.mark.parametrize("arguments", [("plan",), ("run", "out"), ("run", "out", "--json")])
def test_a_tensor_that_a_fine_tune_lacks_is_said_before_anything_is_written(
    arguments: tuple[str, ...], run, toys: Callable[..., None], layered, monkeypatch: pytest.MonkeyPatch
):
    lacking = layered(1, noise_of=layered(0))
    del lacking["layers.1.mlp.weight"]
    toys("a", lacking, num_hidden_layers=2)
    text = TEXT.replace("linear", "task_arithmetic") + "base_model: base\n"
    Path("recipe.yaml").write_text(text)
    monkeypatch.setattr(Merge, "run", refuse)  # what is printed is printed before
    result = run(arguments[0], "recipe.yaml", *arguments[1:])
    assert isinstance(result.exception, StoppedError) == (arguments[0] == "run")
    assert "layers.1.mlp.weight  copied from base: not present in a\n" in result.output
    Path("recipe.yaml").write_text(text + "extra_tensors: error\n")
    refused = run(arguments[0], "recipe.yaml", *arguments[1:])
    assert "only b, base has it, and a has not" in str(refused.exception)


class StoppedError(Exception):
    """Nothing is to be written."""


def refuse(*_: object, **__: object) -> None:
    raise StoppedError


def test_a_mistake_reaches_the_user_as_an_error_of_ours(run):
    result = run("run", "recipe.yaml", "out", "--memory", "1MB")
    assert "may take 1.0 MB" in str(result.exception)
    assert not Path("out").exists()


LOADED = """
import json, sys
from transship.cli.merge import command
command(sys.argv[1:], standalone_mode=False)
print(json.dumps(sorted({"torch", "transformers", "pydantic", "scipy"} & set(sys.modules))), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [("plan",), ("run", "out")])
def test_neither_command_imports_a_library_that_it_can_do_without(arguments: tuple[str, ...], run):
    words = [arguments[0], "recipe.yaml", *arguments[1:]]
    done = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_options_of_mergekit_do_what_they_do_there(run):
    options = [
        "--out-shard-size",
        "20",
        "--no-copy-tokenizer",
        "--no-write-model-card",
        "--lora-merge-cache",
        "x",
    ]
    result = run("run", "recipe.yaml", "out", *options)
    assert result.exit_code == 0, result.output
    assert "--lora-merge-cache does nothing here: adapters are added" in result.stderr
    names = {path.name for path in Path("out").iterdir()}
    assert "model.safetensors.index.json" in names
    assert not names & {"README.md", "transship.json", "tokenizer.json"}
    with pytest.raises(OptionError, match="--num-threads: it has another name here; use --jobs"):
        CliRunner().invoke(command, ["run", "recipe.yaml", "b", "--num-threads", "2"], catch_exceptions=False)


def test_a_shard_of_no_size_is_refused_before_the_plan(run):
    with pytest.raises(OptionError, match="--out-shard-size: 'big' is not a size"):
        CliRunner().invoke(
            command, ["run", "recipe.yaml", "o", "--out-shard-size", "big"], catch_exceptions=False
        )


def test_crimes_are_what_the_recipe_calls_compatibility(run):
    assert plan("recipe.yaml").recipe.compatibility == "error"
    assert plan("recipe.yaml", compatibility="warn").recipe.compatibility == "warn"
    assert run("run", "recipe.yaml", "out", "--allow-crimes").exit_code == 0


def test_a_shard_is_counted_in_bytes_or_in_parameters():
    assert shard_bytes("5GB", 200, 100) == 5_000_000_000
    assert [shard_bytes(text, 200, 100) for text in ("5B", "1.5M", "10k")] == [
        10_000_000_000,
        3_000_000,
        20_000,
    ]


def test_plan_shows_layers_and_the_recipes_inside(run):
    inner = "name: inner\n" + TEXT + "---\n"
    outer = "merge_method: passthrough\nslices:\n"
    parts = [
        "  - sources: [{model: inner, layer_range: [0, 2]}]\n",
        "  - sources: [{model: a, layer_range: [1, 2]}]\n",
    ]
    Path("nested.yaml").write_text(inner + outer + "".join(parts))
    stdout = run("plan", "nested.yaml").stdout
    assert "0 to 1  inner 0 to 1" in stdout
    assert "2       a 1" in stdout
    assert "inner  linear  a, b" in stdout
    run("run", "nested.yaml", "out")
    assert "```yaml\nname: inner\n" + TEXT in Path("out/README.md").read_text()
