"""What starts fast stays fast, and what is built can be installed."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import transship
from transship.cli import SPINS, main
from transship.progress import keeping

LOADED = """
import json, sys
{body}
heavy = {{"numpy", "pyarrow", "torch", "transformers"}} & set(sys.modules)
print(json.dumps([sorted(heavy), sum(name.startswith("transship") for name in sys.modules)]))
"""
HELP = 'from transship.cli import group\ntry:\n    group.main(["{}"])\nexcept SystemExit:\n    pass'


@pytest.mark.parametrize("body", ["import transship", HELP.format("--help"), HELP.format("--version")])
def test_start_up_imports_no_heavy_library_and_few_files_of_ours(body: str):
    output = subprocess.run(
        [sys.executable, "-c", LOADED.format(body=body)], capture_output=True, text=True, check=True
    )
    heavy, ours = json.loads(output.stdout.splitlines()[-1])
    assert heavy == []
    assert 0 < ours < 48


def test_the_version_is_the_package_version():
    output = subprocess.run(
        [sys.executable, "-m", "transship", "--version"], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == f"transship {transship.__version__}"


def test_every_public_name_exists():
    for name in transship.__all__:
        assert getattr(transship, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = transship.nothing


def test_signs_that_a_terminal_lacks_are_replaced():
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "transship", "methods", "transport"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert b"?" in done.stdout
    assert "theseus" in done.stdout.decode("latin-1")


@pytest.mark.slow
def test_a_wheel_builds_and_answers_in_an_empty_environment(tmp_path: Path):
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, root],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty/bin/python"
    # --version needs click alone; the other dependencies would cost gigabytes and prove nothing more
    subprocess.run([python, "-m", "pip", "install", "--quiet", "click"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    output = subprocess.run(
        [tmp_path / "empty/bin/transship", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert output.stdout.strip() == f"transship {transship.__version__}"
    assert (next((tmp_path / "empty/lib").glob("python*")) / "site-packages/transship/py.typed").is_file()


@pytest.mark.parametrize(
    ("told", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_wait_briefly_unless_the_user_says_otherwise(told, spins):
    """It is said before torch is there, whose threads hear it once."""
    code = (
        "import os, sys, transship.cli as cli\n"
        "cli.group.main = lambda *a, **k: print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))\n"
        "cli.main(['methods'])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | told, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", str(spins)]


def test_a_quoted_home_folder_is_the_home_folder(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "texts.jsonl").write_text("{}")
    for words in (["inspect", "~/nothing"], ["merge", "plan", "~/nothing", "--memory=~/x"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 2
        assert str(tmp_path) in capsys.readouterr().err


def test_a_command_that_is_nearly_right_is_asked_back(capsys):
    with pytest.raises(SystemExit) as left:
        main(["transprt", "a"])
    assert left.value.code == 2
    assert "No such command 'transprt'. Did you mean 'transport'?" in capsys.readouterr().err


def test_ctrl_c_says_what_the_work_says_is_kept(monkeypatch, capsys, tmp_path: Path):
    def stopped(*_: object, **__: object) -> None:
        with keeping("statistics", tmp_path):
            raise KeyboardInterrupt

    monkeypatch.setattr("transship.registry.describe_all", stopped)
    with pytest.raises(SystemExit) as left:
        main(["methods"])
    assert left.value.code == 130
    kept = f"stopped; statistics are kept in {tmp_path}, and the same command goes on from there"
    assert capsys.readouterr().err.splitlines()[-1] == kept
