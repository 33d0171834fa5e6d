"""How many files a command enters, on the small models of the pins."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from transship.cli import main

ROOT = Path(__file__).parents[2]


def load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(file).stem, ROOT / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


walk = load("scripts/walk.py")


def entered(*words: Any) -> dict[str, set[str]]:
    codes: list[Any] = []

    def command() -> None:
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            codes.append(end.code)

    files: dict[str, set[str]] = walk.walk(command)
    assert codes in ([], [0])
    return files


def test_a_file_counts_when_one_of_its_functions_runs_and_not_for_its_import(tmp_path: Path):
    package = tmp_path / "src" / "walked"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "used.py").write_text("def used():\n    return [n for n in range(2)]\n")
    (package / "imported.py").write_text(
        "class Imported:\n    numbers = [n for n in range(3)]\n\n"
        "def at_import():\n    return 1\n\nvalue = at_import()\ndouble = lambda n: 2 * n\n"
    )
    sys.path.insert(0, str(tmp_path / "src"))
    try:
        with walk.Walk(tmp_path / "src") as steps:
            from walked import imported, used

            used.used()
            imported.double(2)
            imported.Imported()
    finally:
        sys.path.remove(str(tmp_path / "src"))
    assert steps.entered == {"walked/used.py": {"used"}}


def transport(folder: Path) -> dict[str, set[str]]:
    load("tests/pins/transport_jobs.py").pictures(folder)
    models = [folder / name for name in ("a", "tuned", "wide", "out")]
    words = ["--data", folder / "seen.npz", "--method", "theseus", "--batches", 2]
    return entered("transport", *models, *words, "--prepared", folder / "prepared")


def merge_run(folder: Path) -> dict[str, set[str]]:
    load("tests/pins/merge_jobs.py").make_models(folder)
    models = [{"model": str(folder / "llama-a")}, {"model": str(folder / "llama-b")}]
    recipe = {"merge_method": "ties", "base_model": str(folder / "llama-base"), "models": models}
    recipe["parameters"] = {"density": 0.5, "weight": 0.5}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return entered("merge", "run", folder / "recipe.yaml", folder / "out")


def merge_add(folder: Path) -> dict[str, set[str]]:
    load("tests/pins/merge_jobs.py").make_models(folder)
    fusion = folder / "fusion"
    method = ["--method", "otmf", "--keep-inputs", 24, "-o", "iterations", 6]
    entered("merge", "start", fusion, "--base", folder / "texts", *method)
    entered("merge", "add", fusion, folder / "task-0", "--data", folder / "data-0.jsonl")
    return entered("merge", "add", fusion, folder / "task-1", "--data", folder / "data-1.jsonl")


def adapt_fit(folder: Path) -> dict[str, set[str]]:
    jobs = load("tests/pins/adapt_jobs.py")
    table, proxy = jobs.waves(90), jobs.sentences()
    columns = {"series": table[0].tolist(), "label_name": table[1].tolist()}
    jobs.pq.write_table(jobs.pa.table(columns), folder / "waves.parquet")
    columns = {"text": proxy.inputs, "label": proxy.labels.tolist()}
    jobs.pq.write_table(jobs.pa.table(columns), folder / "proxy.parquet")
    words = ["--backbone", jobs.text_body(folder / "bert"), "--proxy", folder / "proxy.parquet"]
    words += ["--train", folder / "waves.parquet", "--steps", 6, "--tokens", 6, "--omega", 0.5]
    words += [part for name in ("fa_steps", "fld_steps") for part in ("-o", name, 3)]
    return entered("adapt", "fit", folder / "model", *words, "--device", "cpu")


def translate_apply(folder: Path) -> dict[str, set[str]]:
    jobs = load("tests/pins/translate_jobs.py")
    jobs.write_inputs(folder, *jobs.spaces(jobs.ROWS))
    entered(
        "translate",
        "fit",
        folder / "old.parquet",
        folder / "new.parquet",
        folder / "map",
        "--method",
        "ridge",
    )
    return entered("translate", "apply", folder / "map", folder / "old.parquet", folder / "moved.parquet")


# numbers that may only fall
@pytest.mark.parametrize(
    ("command", "most"),
    [(transport, 82), (merge_run, 50), (merge_add, 74), (adapt_fit, 71), (translate_apply, 26)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_command_leads_through_few_files(
    command: Callable[[Path], dict[str, set[str]]],
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("HOME", str(tmp_path))
    files = command(tmp_path)
    print(len(files), *sorted(files), sep="\n")
    assert len(files) <= most, sorted(files)


def test_the_script_prints_rooms_and_files(capsys: pytest.CaptureFixture[str]):
    walk.main(["methods", "transport"])
    text = capsys.readouterr().out
    assert "transship.cli (" in text
    assert "  methods.py" in text
