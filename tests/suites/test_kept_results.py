"""`scripts/results.py`: kept runs say what today's declarations say, and nothing else of them changes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from transship.report import markdown
from transship_suites import SuiteResult, load_suite
from transship_suites.runner.page import suite_page
from transship_suites.runner.run import run_suite

ROOT = Path(__file__).resolve().parents[2]
KEPT = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with toy suites and a folder of its own."""
    spec = importlib.util.spec_from_file_location("results_script", ROOT / "scripts" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "KEPT", tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    return module


def _toy_run(toy: Callable[..., Path], script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SuiteResult:
    folder = toy()
    monkeypatch.setattr(script, "load_suite", lambda name: load_suite(name, folder))
    return run_suite(load_suite("toy-suite", folder), "quick")


def test_a_kept_run_is_judged_anew_from_its_own_cases(toy: Any, script: ModuleType, monkeypatch: Any):
    run = _toy_run(toy, script, monkeypatch)
    assert script.again(run) == run
    file = toy(sleep=7.0) / "toy_suite.py"
    text = file.read_text().replace("at_least=0.5", "at_least=2").replace("): 1.25}", "): 1.5}")
    file.write_text(text.replace("Better is better.", "Better is much better."))
    again = script.again(run)
    assert [(claim.text, claim.verdict) for claim in again.claims][:1] == [
        ("Better is much better.", "refuted")
    ]
    assert (run.tables[0].paper[1][0], again.tables[0].paper[1][0]) == (1.25, 1.5)
    assert again.tables[0].cells == run.tables[0].cells
    for untouched in ("cases", "seeds", "options", "fingerprint", "environment", "scale"):
        assert getattr(again, untouched) == getattr(run, untouched)


def test_a_large_run_is_kept_rounded_with_the_tables_of_the_rounded_numbers(
    toy: Any, script: ModuleType, monkeypatch: Any, tmp_path: Path
):
    run = _toy_run(toy, script, monkeypatch)
    file = tmp_path / "results.json"
    file.write_text(run.dumps(), encoding="utf-8")
    small = SuiteResult.read(script.keep(file))
    assert small == run
    monkeypatch.setattr(script, "LARGE", 10)
    large = SuiteResult.read(script.keep(file))
    before = [measurement.metrics["score"] for measurement in run.measurements]
    after = [measurement.metrics["score"] for measurement in large.measurements]
    assert after == [float(f"{value:.5g}") for value in before]
    assert after != before
    assert large == script.again(large)
    assert (large.fingerprint, large.options, large.seeds) == (run.fingerprint, run.options, run.seeds)


def test_a_kept_file_says_nothing_of_a_case_twice_and_gives_the_run_back(
    toy: Any, script: ModuleType, monkeypatch: Any
):
    run = _toy_run(toy, script, monkeypatch)
    written = json.loads(script.write(run).read_text(encoding="utf-8"))
    measured = [measurement for case in written["cases"] for measurement in case["measurements"]]
    assert {tuple(each) for each in measured} == {("factors", "metrics")}
    assert {tuple(each["factors"]) for each in measured} == {("samples",)}  # the case has method and seed
    assert SuiteResult.from_json(written) == run
    (kept,) = script.runs()
    assert [dict(measurement.factors) for measurement in kept.measurements] == [
        dict(measurement.factors) for measurement in run.measurements
    ]
    assert [measurement.seed for measurement in kept.measurements] == [
        measurement.seed for measurement in run.measurements
    ]


@pytest.mark.parametrize(
    "file",
    KEPT,
    ids=lambda file: file.stem,
)
def test_every_kept_run_says_what_is_declared_today(file: Path, script: ModuleType):
    run = SuiteResult.read(file)
    suite = load_suite(run.suite)
    page, fix = markdown.render(suite_page(suite, run)), f"python scripts/results.py --again {run.suite}"
    assert page == markdown.render(suite_page(suite, script.again(run))), fix
