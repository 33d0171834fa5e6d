from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from transship.cli import main
from transship.cli.bench import command
from transship.errors import TransshipError
from transship_suites import SuiteResult, suite_names

SUITE = """
from transship_suites.runner import Claim, Condition, Need, Paper, PaperTable, Heading
from transship_suites.runner import Scale, Suite, cell, product

suite = Suite(
    title="Counting",
    summary="Counts seeds.",
    paper=Paper("On counting", authors="Somebody"),
    claims=(Claim(text="Seeds are small.", quantity=cell("count"), at_most=100),),
    scales={
        "quick": Scale(seeds=2, minutes=1),
        "full": Scale(seeds=3, minutes=5, needs=(Need("data", "absent-data", "run get-data"),)),
    },
    cases=lambda options: product(kind=["one"]),
    run=lambda case, context: {"count": case.seed},
    tables=(
        PaperTable("Counts", (Condition("one", {"kind": "one"}),), (Heading("count", "count", digits=1),)),
    ),
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRANSSHIP_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    suites = tmp_path / "suites"
    suites.mkdir()
    (suites / "counting.py").write_text(SUITE)
    (suites / "counting_more.py").write_text(SUITE.replace('"Counting"', '"Counting more"'))
    return suites


def bench(folder: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(command, [*arguments, "--suites", str(folder)])
    if result.exception is not None and not isinstance(result.exception, SystemExit | TransshipError):
        raise result.exception
    return result


def test_without_names_suites_are_listed_with_claim_time_and_needs(folder: Path):
    result = bench(folder)
    assert result.exit_code == 0
    assert "counting  Counting\n" in result.stdout
    assert "claim   Seeds are small." in result.stdout
    assert "confirmed if" not in result.stdout
    rule = "confirmed if the whole 95 % t-interval over seeds of count is ≤ 100"
    assert json.loads(bench(folder, "--json").stdout)[0]["claims"][0][1].startswith(rule)
    assert "time    quick 1 min, full 5 min" in result.stdout
    assert "needs   data absent-data (run get-data): missing, for --scale full" in result.stdout


def test_our_own_suites_are_listed_as_json():
    result = CliRunner().invoke(command, ["--json"])
    listed = json.loads(result.stdout)
    assert [card["name"] for card in listed] == list(suite_names())
    geometry = next(card for card in listed if card["name"] == "shared-geometry")
    assert geometry["needs"]["quick"] == [["data", "digits", "comes with scikit-learn", True]]


def test_a_run_prints_the_table_and_the_verdict_and_writes_three_files(folder: Path, tmp_path: Path):
    result = bench(folder, "counting", "--quick", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert "| one | 0.5 ± 0.7 |" in result.stdout
    assert "confirmed: Seeds are small." in result.stdout
    assert "counting: 2 of 2 cases" in result.stderr
    written = tmp_path / "out" / "counting" / "quick"
    assert sorted(file.name for file in written.iterdir()) == ["report.html", "results.json", "results.md"]
    assert SuiteResult.read(written / "results.json").claims[0].verdict == "confirmed"


def test_json_is_all_that_stdout_has(folder: Path):
    result = bench(folder, "counting", "--quick", "--json", "--seed", "7")
    (value,) = json.loads(result.stdout)
    assert SuiteResult.from_json(value).seeds == (7, 8)


def test_all_runs_every_suite_and_writes_one_page(folder: Path, tmp_path: Path):
    result = bench(folder, "all", "--quick", "--out", "out")
    assert result.exit_code == 0
    page = (tmp_path / "out" / "all" / "quick" / "report.html").read_text()
    assert "Counting more" in page
    assert (tmp_path / "out" / "counting-more" / "quick" / "results.json").is_file()


PAPER_ONLY = SUITE.replace('"quick": Scale(seeds=2, minutes=1),', "").replace('"full"', '"paper"')


def test_all_leaves_out_what_has_no_such_scale_and_says_so(folder: Path, tmp_path: Path):
    (folder / "large_one.py").write_text(PAPER_ONLY)
    result = bench(folder, "all", "--quick", "--out", "out")
    assert result.exit_code == 0
    assert "large-one: left out, it has no scale 'quick', only paper" in result.stderr
    assert (tmp_path / "out" / "all" / "quick" / "report.html").is_file()
    named = bench(folder, "large-one", "--quick")
    assert "large-one: there is no scale 'quick'" in str(named.exception)
    listed = bench(folder).stdout
    assert "time    paper 5 min with a GPU, a guess" in listed
    assert "needs   data absent-data (run get-data): missing, for --scale paper" in listed


def test_options_of_a_scale_can_be_set_and_are_stated(folder: Path, tmp_path: Path):
    text = SUITE.replace("minutes=1)", 'minutes=1, options={"step": 1, "names": []})')
    text = text.replace("case.seed}", 'context.options["step"] * case.seed}')
    (folder / "stepping.py").write_text(text)
    arguments = ["stepping", "--quick", "--set", "step", "20", "--set", "names", '["a"]', "--jobs", "2"]
    result = bench(folder, *arguments, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    content = SuiteResult.read(tmp_path / "out" / "stepping" / "quick" / "results.json")
    assert content.options == {"step": 20, "names": ["a"]}
    assert [measurement.metrics["count"] for measurement in content.measurements] == [0.0, 20.0]
    wrong = bench(folder, "stepping", "--quick", "--set", "stpe", "2")
    assert "there is no option 'stpe'; did you mean 'step'?" in str(wrong.exception)


def test_the_same_command_again_keeps_what_is_finished(folder: Path):
    bench(folder, "counting", "--quick")
    again = bench(folder, "counting", "--quick")
    assert again.exit_code == 0
    assert "2 cases over 2 seeds, 2 of them finished before" in again.stderr
    assert "(2 kept from before)" in again.stderr
    assert "kept from before" not in bench(folder, "counting", "--quick", "--fresh").stderr


def test_another_runs_results_need_force(folder: Path):
    bench(folder, "counting", "--quick")
    refused = bench(folder, "counting", "--quick", "--seed", "3")
    assert "holds another result; pass --force" in str(refused.exception)
    assert bench(folder, "counting", "--quick", "--seed", "3", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["countnig", "--quick"], "bench: there is no suite 'countnig'; did you mean 'counting'?"),
        (["counting"], "counting: one thing it needs is not here: data 'absent-data' (run get-data)"),
        (["counting", "--scale", "paper"], "counting: there is no scale 'paper'"),
        (["counting", "--quick", "--scale", "full"], "--quick and --scale full contradict each other"),
        (["counting", "--jobs", "0"], "0 is not in the range 1<=x<=1024"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(
    folder: Path, capsys, arguments: list[str], said: str
):
    with pytest.raises(SystemExit) as left:
        main(["bench", *arguments, "--suites", str(folder)])
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert not (folder.parent / "transship-bench").exists()


def test_suites_that_miss_something_can_be_left_out(folder: Path):
    (folder / "counting_less.py").write_text(SUITE.replace("absent-data", "digits"))
    result = bench(folder, "all", "--skip-missing")
    assert result.exit_code == 0
    assert (
        "counting: left out, one thing it needs is not here: data 'absent-data' (run get-data)"
        in result.stderr
    )
    assert Path("transship-bench/counting-less/full/results.json").is_file()
    assert not Path("transship-bench/counting").exists()


def test_nothing_to_run_is_said(folder: Path):
    result = bench(folder, "counting", "--skip-missing")
    assert "no suite can run here" in str(result.exception)


def test_ctrl_c_leaves_130_and_finished_cases(folder: Path, capsys):
    text = SUITE.replace('{"count": case.seed}', "stop(case)")
    stop = "def stop(case):\n    if case.seed:\n        raise KeyboardInterrupt\n    return {'count': 0}\n\n"
    (folder / "counting.py").write_text(text.replace("suite = Suite(", stop + "suite = Suite("))
    with pytest.raises(SystemExit) as left:
        main(["bench", "counting", "--quick", "--suites", str(folder)])
    assert left.value.code == 130
    assert "stopped; finished cases are kept in " in capsys.readouterr().err
    assert len(list((folder.parent / "cache" / "suites" / "cases" / "counting").glob("*"))) == 1


def test_help_imports_no_heavy_library():
    code = (
        "import sys; from transship.cli.bench import command\n"
        "print(sorted({'torch', 'numpy', 'transformers', 'transship_suites'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_less_memory_than_suites_take_is_refused_with_the_least(folder: Path, tmp_path: Path):
    refused = bench(folder, "counting", "--quick", "--memory", "2GB")
    # a torch that is built for GPUs takes more than one for processors alone
    assert re.search(r"--memory: a suite needs at least 6\.\d GB and may take 2.0 GB", str(refused.exception))
    assert not (tmp_path / "transship-bench").exists()
    assert bench(folder, "counting", "--quick", "--memory", "8GB").exit_code == 0
    unknown = bench(folder, "counting", "--scale", "paper", "--memory", "8GB")
    assert "nobody has measured what --scale paper takes" in str(unknown.exception)


def test_a_long_suite_gets_a_process_per_core_and_a_short_one_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from transship.cli import bench as bench_command
    from transship_suites.runner import bench as runner

    monkeypatch.setattr(bench_command.os, "cpu_count", lambda: 4)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "absent-data").mkdir()
    suites = runner.choose(("counting",), folder)
    quick, full = (runner.prepare(suites, scale)[0] for scale in ("quick", "full"))
    assert bench_command._side_by_side(quick, 100_000_000_000) == 1
    assert bench_command._side_by_side(full, 100_000_000_000) == 4
    assert bench_command._side_by_side(full, 14_000_000_000) == 2
    assert bench_command._side_by_side(full, 7_000_000_000) == 1
    assert bench_command._side_by_side(full, None) in (1, 2, 3, 4)
    full.device = "cuda"
    assert bench_command._side_by_side(full, 100_000_000_000) == 1


def test_memory_counts_every_process_that_is_asked_for(folder: Path):
    refused = bench(folder, "counting", "--quick", "--jobs", "2", "--memory", "8GB")
    assert re.search(r"a suite needs at least 1[23]\.\d GB and may take 8.0 GB", str(refused.exception))
