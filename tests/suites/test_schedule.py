"""Several suites over a few processes: they overlap, a process keeps to its suite, results stay the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from transship.cli.bench import command
from transship.errors import OptionError
from transship_suites import SuiteRun, load_suite
from transship_suites.runner.run import side_by_side

# a case notes its process, and may wait for the note of a case of another suite or process
SUITE = """
import os, time
from pathlib import Path

from transship_suites.runner import Claim, Heading, Paper, Condition, Scale, Suite, PaperTable, cell, product

NOTES = Path(NOTES_FOLDER)


def run(case, context):
    (NOTES / f"NAME-{case['place']}").write_text(str(os.getpid()))
    wanted = AWAITS.get(case["place"])
    end = time.monotonic() + 60
    while wanted and not (NOTES / wanted).exists() and time.monotonic() < end:
        time.sleep(0.02)
    return {"met": float(not wanted or (NOTES / wanted).exists())}


suite = Suite(
    title="NAME",
    summary="Meets others.",
    paper=Paper("On meeting", authors="Somebody"),
    claims=(Claim(text="All meet.", quantity=cell("met"), at_least=1),),
    scales={"quick": Scale(seeds=1, minutes=MINUTES), "full": Scale(seeds=2, minutes=MINUTES)},
    cases=lambda options: product(place=list(range(CASES))),
    run=run,
    tables=(PaperTable("Meetings", (Condition("all"),), (Heading("met", "met"),)),),
)
"""


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a suite: its minutes, how many cases, and which of them await a note."""
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder, notes = tmp_path / "suites", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()

    def write(name: str, *, minutes: float, cases: int, awaits: dict[int, str] | None = None) -> Path:
        text = SUITE.replace("NOTES_FOLDER", repr(str(notes))).replace("AWAITS", repr(awaits or {}))
        text = text.replace("NAME", name).replace("MINUTES", str(minutes)).replace("CASES", str(cases))
        (folder / f"{name}.py").write_text(text)
        return folder

    return write


def runs(folder: Path, *names: str) -> list[SuiteRun]:
    return [SuiteRun(load_suite(name, folder), "quick") for name in names]


def met(run: SuiteRun) -> list[float | None]:
    return [measurement.metrics["met"] for measurement in run.result().measurements]


@pytest.mark.slow
def test_the_last_long_case_of_a_suite_leaves_the_other_core_to_another_suite(suites, tmp_path: Path):
    folder = suites("few", minutes=10, cases=1, awaits={0: "many-3"})
    suites("many", minutes=1, cases=4)
    few, many = runs(folder, "few", "many")
    events = list(side_by_side([many, few], 2))
    assert met(few) == [1]
    assert met(many) == [1] * 4
    # a process has one suite, so that what a suite keeps in memory goes with it
    pids = {note.name: note.read_text() for note in (tmp_path / "notes").iterdir()}
    assert pids["few-0"] not in [pids[f"many-{place}"] for place in range(4)]
    # longest cases first, and each run says that it begins before its cases come
    assert [run.suite.name for run, step in events if step is None] == ["few", "many"]
    for run in (few, many):
        own = [step for event, step in events if event is run]
        assert own[0] is None
        assert [step.done for step in own[1:]] == list(range(1, len(run.cases) + 1))


@pytest.mark.slow
def test_both_processes_work_at_a_suite_that_is_alone(suites):
    folder = suites("pair", minutes=1, cases=2, awaits={0: "pair-1", 1: "pair-0"})
    (run,) = runs(folder, "pair")
    assert [step.done for _, step in side_by_side([run], 2) if step] == [1, 2]
    assert met(run) == [1, 1]


def test_what_was_finished_before_comes_first_and_is_not_run_again(suites, tmp_path: Path):
    folder = suites("one", minutes=1, cases=2)
    suites("other", minutes=1, cases=2)
    both = runs(folder, "one", "other")
    for _ in both[0].steps():
        pass
    (tmp_path / "notes" / "one-0").unlink()
    for jobs in (1, 2):
        events = [(run.suite.name, step and step.reused) for run, step in side_by_side(both, jobs)]
        assert events[:3] == [("one", None), ("one", True), ("one", True)]
        assert [name for name, _ in events[3:]] == ["other"] * 3
    assert not (tmp_path / "notes" / "one-0").exists()


def test_no_process_cannot_work(suites):
    with pytest.raises(OptionError, match="0 processes cannot work"):
        next(side_by_side(runs(suites("one", minutes=1, cases=1), "one"), 0))


@pytest.mark.slow
def test_results_come_in_the_order_of_the_names_whatever_ended_first(suites, tmp_path: Path):
    folder = suites("a_short_one", minutes=1, cases=2)
    suites("b_long_one", minutes=9, cases=2)
    arguments = ["all", "--quick", "--jobs", "2", "--json", "--suites", str(folder)]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert [result["suite"] for result in json.loads(done.stdout)] == ["a-short-one", "b-long-one"]
    assert done.stderr.startswith("2 suites; about 10 min")
    for name in ("a-short-one", "b-long-one"):
        assert f"{name}: 2 of 2 cases" in done.stderr
        assert (tmp_path / "transship-bench" / name / "quick" / "report.html").is_file()


def test_several_suites_share_what_the_longest_would_get_and_no_device(suites, monkeypatch):
    from transship.cli import bench

    monkeypatch.setattr(bench.os, "cpu_count", lambda: 4)
    folder = suites("short", minutes=1, cases=1)
    suites("long", minutes=9, cases=1)
    both = runs(folder, "short", "long")
    assert bench._processes(both[:1], 100_000_000_000) == 1
    assert bench._processes(both, 100_000_000_000) == 4
    assert bench._processes(both, 14_000_000_000) == 2
    both[0].device = "cuda"
    assert bench._processes(both, 100_000_000_000) == 1
