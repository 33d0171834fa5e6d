from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from transship.errors import OptionError
from transship.numerics import kernels
from transship_suites import SuiteRun, load_suite, run_suite
from transship_suites.runner import Measurement


def untimed(value: object) -> object:
    """Return a result's JSON without what a clock measured."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key != "seconds"}
    return [untimed(part) for part in value] if isinstance(value, list | tuple) else value


def test_a_run_measures_every_case_of_every_seed(toy, log):
    result = run_suite(load_suite("toy-suite", toy()), "quick")
    assert result.seeds == (0, 1, 2)
    assert len(result.cases) == 6
    assert [measurement.factors["samples"] for measurement in result.cases[0].measurements] == [10, 20]
    assert sum(line.startswith("case") for line in log()) == 6
    # both methods of a seed share what was trained
    assert sorted(line for line in log() if line.startswith("train")) == ["train 0", "train 1", "train 2"]


def test_the_numbers_are_those_of_the_suite_and_spread_equals_numpy(toy):
    result = run_suite(load_suite("toy-suite", toy()), "quick")
    values = np.array(
        [[measurement.metrics["score"] for measurement in case.measurements] for case in result.cases]
    )
    plain, better = values[:3], values[3:]
    scores, at_20 = result.tables[0].cells[1]
    assert scores.mean == pytest.approx(better.mean(1).mean())
    assert scores.sd == pytest.approx(better.mean(1).std(ddof=1))
    assert at_20.mean == pytest.approx(100 * better[:, 1].mean())
    assert at_20.sd == pytest.approx(100 * better[:, 1].std(ddof=1))
    weights = np.random.default_rng(0).normal(size=8)
    assert plain[0, 0] == pytest.approx(0.1 * weights.mean(), abs=0.03)
    assert [claim.verdict for claim in result.claims] == ["confirmed", "refuted", "undecided"]
    assert [point.mean for point in result.curves[0].points[1]] == pytest.approx(list(better.mean(0)))


def test_what_is_not_finite_is_kept_as_missing(toy):
    result = run_suite(load_suite("toy-suite", toy()), "quick")
    assert {measurement.metrics["none"] for measurement in result.measurements} == {None}
    assert result.claims[2].reason == "no value for seed 0, 1, 2"


def test_a_second_run_computes_nothing_and_says_the_same(toy, log):
    suite = load_suite("toy-suite", toy())
    first = run_suite(suite, "quick")
    noted = log()
    run = SuiteRun(suite, "quick")
    assert all(step.reused for step in run.steps())
    assert run.result() == first
    assert log() == noted


def test_fresh_computes_everything_again_once(toy, log):
    suite = load_suite("toy-suite", toy())
    first = run_suite(suite, "quick")
    again = run_suite(suite, "quick", fresh=True)
    assert untimed(again.to_json()) == untimed(first.to_json())
    assert len(log()) == 2 * (6 + 3)


def test_a_changed_declaration_is_run_again_but_trained_things_stay(toy, log):
    folder = toy()
    run_suite(load_suite("toy-suite", folder), "quick")
    file = folder / "toy_suite.py"
    file.write_text(file.read_text().replace('"better": 1.0', '"better": 2.0'))
    result = run_suite(load_suite("toy-suite", folder), "quick")
    assert result.claims[0].spread.mean == pytest.approx(2.0)
    assert sum(line.startswith("case") for line in log()) == 12
    assert sum(line.startswith("train") for line in log()) == 3


def test_changed_training_code_trains_again_and_a_comment_does_not(toy, log):
    folder = toy()
    run_suite(load_suite("toy-suite", folder), "quick")
    file = folder / "toy_suite.py"
    file.write_text(file.read_text().replace("def train(seed):", "def train(seed):\n    # a reason"))
    run_suite(load_suite("toy-suite", folder), "quick")
    assert len(log()) == 9
    file.write_text(file.read_text().replace("size=8", "size=9"))
    run_suite(load_suite("toy-suite", folder), "quick")
    assert len(log()) == 18


def test_a_raised_version_forgets_finished_cases(toy, log):
    folder = toy()
    run_suite(load_suite("toy-suite", folder), "quick")
    file = folder / "toy_suite.py"
    file.write_text(file.read_text().replace("    run=run,", "    run=run,\n    version=2,"))
    run_suite(load_suite("toy-suite", folder), "quick")
    assert sum(line.startswith("case") for line in log()) == 12


def test_full_adds_seeds_to_what_quick_has_measured(toy, log):
    suite = load_suite("toy-suite", toy())
    run_suite(suite, "quick")
    result = run_suite(suite, "full")
    assert result.seeds == (0, 1, 2, 3, 4)
    assert sum(line.startswith("case") for line in log()) == 10


def test_another_first_seed_measures_other_numbers(toy):
    suite = load_suite("toy-suite", toy())
    first, other = run_suite(suite, "quick"), run_suite(suite, "quick", seed=10)
    assert other.seeds == (10, 11, 12)
    assert other.tables[0].cells[0][0].mean != first.tables[0].cells[0][0].mean


def test_a_damaged_case_file_is_run_again(toy, log, tmp_path: Path):
    suite = load_suite("toy-suite", toy())
    first = run_suite(suite, "quick")
    files = sorted((tmp_path / "cache" / "suites" / "cases" / "toy-suite").glob("*.json"))
    files[0].write_text(files[0].read_text()[:-20])
    files[1].write_text(files[2].read_text())
    assert untimed(run_suite(suite, "quick").to_json()) == untimed(first.to_json())
    assert sum(line.startswith("case") for line in log()) == 8


@pytest.mark.slow
def test_several_processes_say_the_same_as_one(toy, tmp_path: Path):
    suite = load_suite("toy-suite", toy())
    alone = run_suite(suite, "quick", home=tmp_path / "one")
    together = run_suite(suite, "quick", home=tmp_path / "two", jobs=2)
    assert untimed(together.to_json()) == untimed(alone.to_json())


def test_a_result_says_which_processor_and_kernels_computed_it(toy):
    result = run_suite(load_suite("toy-suite", toy()), "quick")
    assert result.environment["kernels"] == kernels()
    assert ", torch " in kernels()


RUN = """
import sys
from pathlib import Path
from transship_suites import load_suite, run_suite
result = run_suite(load_suite("toy-suite", Path(sys.argv[1])), "quick", jobs=int(sys.argv[3]))
Path(sys.argv[2]).write_text(result.dumps())
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_run_continues_to_the_same_result(toy, log, tmp_path: Path, monkeypatch, jobs: int):
    folder = toy(sleep=0.3)

    def command(out: str) -> list[str]:
        return [sys.executable, "-c", RUN, str(folder), str(tmp_path / out), str(jobs)]

    undisturbed = tmp_path / "elsewhere"
    subprocess.run(command("whole.json"), check=True, env={**os.environ, "TRANSSHIP_CACHE": str(undisturbed)})
    (tmp_path / "log").unlink()
    process = subprocess.Popen(command("broken.json"), stderr=subprocess.DEVNULL)
    cases = tmp_path / "cache" / "suites" / "cases" / "toy-suite"
    while len(list(cases.glob("*.json"))) < 2:
        time.sleep(0.02)
        assert process.poll() is None, "it must be killed in the middle"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "broken.json").exists()
    kept = len(list(cases.glob("*.json")))
    assert 2 <= kept < 6
    time.sleep(1.0 if jobs > 1 else 0.0)  # orphaned workers notice within half a second
    before = sum(line.startswith("case") for line in log())
    subprocess.run(command("broken.json"), check=True)
    assert sum(line.startswith("case") for line in log()) == before + 6 - kept
    resumed, whole = (json.loads((tmp_path / name).read_text()) for name in ("broken.json", "whole.json"))
    assert untimed(resumed) == untimed(whole)


def test_an_unfinished_run_has_no_result(toy):
    run = SuiteRun(load_suite("toy-suite", toy()), "quick")
    next(run.steps())
    with pytest.raises(OptionError, match="'method plain, seed 1' is not finished"):
        run.result()
    assert len(run.earlier()[0]) == 1


def test_a_skipped_case_is_tried_again_and_the_others_are_not(toy, log, tmp_path: Path):
    folder, missing = toy(), (tmp_path / "library").as_posix()
    line = '    log = Path(context.options["log"])\n'
    skip = f"    if case.seed == 1 and not Path({missing!r}).exists():\n"
    skip += '        context.attach("skipped", "the library is not here")\n        return []\n'
    file = folder / "toy_suite.py"
    file.write_text(file.read_text().replace(line, skip + line))
    suite = load_suite("toy-suite", folder)
    first = run_suite(suite, "quick")
    assert len(log()) == 2 * (2 + 1)
    assert untimed(run_suite(suite, "quick").to_json()) == untimed(first.to_json())
    assert len(SuiteRun(suite, "quick").earlier()[0]) == 4
    Path(missing).touch()
    second = run_suite(suite, "quick")
    assert len(second.measurements) == len(first.measurements) + 4
    assert len(log()) == 3 * (2 + 1)


def test_a_scale_that_is_not_declared_is_named(toy):
    with pytest.raises(OptionError, match="toy-suite: there is no scale 'paper'; choose one of: full, quick"):
        SuiteRun(load_suite("toy-suite", toy()), "paper")


def test_the_same_thing_measured_twice_is_refused(toy):
    folder = toy()
    file = folder / "toy_suite.py"
    file.write_text(file.read_text().replace("for n in (10, 20)]", "for n in (10, 10)]"))
    with pytest.raises(ValueError, match="score is measured twice under"):
        run_suite(load_suite("toy-suite", folder), "quick")


def test_a_case_listed_twice_and_a_changed_factor_are_refused(toy):
    folder = toy()
    file = folder / "toy_suite.py"
    text = file.read_text()
    file.write_text(text.replace('product(method=["plain", "better"])', 'product(method=["plain", "plain"])'))
    with pytest.raises(ValueError, match="lists a case twice"):
        SuiteRun(load_suite("toy-suite", folder), "quick")
    file.write_text(
        text.replace('Measurement({"samples": n}', 'Measurement({"method": "other", "samples": n}')
    )
    with pytest.raises(ValueError, match="changes its factor method"):
        run_suite(load_suite("toy-suite", folder), "quick")


def test_trained_things_lie_in_the_cache_as_safetensors(toy, tmp_path: Path):
    run_suite(load_suite("toy-suite", toy()), "quick")
    entries = sorted(
        path for path in (tmp_path / "cache" / "suites" / "made" / "toy").iterdir() if path.is_dir()
    )
    assert len(entries) == 3
    assert {file.name for entry in entries for file in entry.iterdir()} == {
        "arrays.safetensors",
        "entry.json",
    }
    assert load_file(entries[0] / "arrays.safetensors")["weights"].shape == (8,)


def test_a_measurement_needs_no_seed_of_its_own():
    assert Measurement({}, {"x": 1.0}).seed == 0
