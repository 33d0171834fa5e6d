from __future__ import annotations

import re
from pathlib import Path

import pytest

from transship.errors import OutputError
from transship.report import markdown
from transship_suites import SuiteResult, SuiteRun, load_suite, run_suite
from transship_suites.runner.bench import check_output, write_joint, write_results
from transship_suites.runner.page import joint_page, suite_page, table_block
from transship_suites.runner.results import TableResult
from transship_suites.runner.verdict import SeedSpread


@pytest.fixture
def suite(toy):
    return load_suite("toy-suite", toy())


@pytest.fixture
def result(suite) -> SuiteResult:
    return run_suite(suite, "quick")


def test_markdown_has_our_numbers_beside_the_papers(suite, result: SuiteResult):
    text = markdown.render(suite_page(suite, result))
    cells = result.tables[0].cells
    for name, (score, at_20), paper in (("plain", cells[0], "–"), ("better", cells[1], "1.250")):
        line = f"| {name} | {score.mean:.3f} ± {score.sd:.3f} | {paper} | {at_20.mean:.1f} ± {at_20.sd:.1f} |"
        assert line.replace("-", "−") in text
    assert "|  | score | paper: score | at 20 [%] |" in text
    assert (
        "Mean ± standard deviation over 3 seeds. The paper's figures: Table 1. "
        "Difference in setting: none of it is real." in text
    )


def test_a_column_that_nothing_was_measured_for_is_left_out():
    there, nothing = SeedSpread(0.5, 0.1, 3), SeedSpread(None, None, 0)
    names, plain = ("measured", "empty", "the paper's alone"), (False, False, False)
    cells = ((there, nothing, nothing),)
    table = TableResult("", ("row",), names, (1, 1, 1), plain, cells, ((None, None, 2.0),), "", "")
    headings = [column.name for column in table_block(table).columns]
    assert headings == ["", "measured", "the paper's alone", "paper: the paper's alone"]
    bare = TableResult("", ("row",), names, (1, 1, 1), plain, ((nothing,) * 3,), ((None,) * 3,), "", "")
    assert [column.name for column in table_block(bare).columns] == ["", *names]


def test_the_page_says_verdict_rule_and_numbers(suite, result: SuiteResult):
    text = markdown.render(suite_page(suite, result))
    assert "1 claim confirmed, 1 refuted, 1 undecided." in text
    for claim in result.claims:
        assert f"**{claim.verdict}**: {claim.text}" in text
        assert claim.rule[1:] in text
    assert "transship bench toy-suite --scale quick --seed 0" in suite_page(suite, result).provenance.command


def test_every_markdown_table_is_rectangular(suite, result: SuiteResult):
    text = markdown.render(suite_page(suite, result))
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE)
    assert len(tables) >= 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_curves_become_figures_with_their_spread(suite, result: SuiteResult):
    (figure,) = suite_page(suite, result).figures
    lines = [
        trace for trace in figure.spec["data"] if trace.get("name") == "better" and "markers" in trace["mode"]
    ]
    assert lines[0]["x"] == [10, 20]
    assert lines[0]["y"] == [point.mean for point in result.curves[0].points[1]]


def test_one_page_of_several_suites_has_all_verdicts(suite, result: SuiteResult, tmp_path: Path):
    text = markdown.render(joint_page([suite, suite], [result, result]))
    assert "2 suites. 2 claims confirmed, 2 refuted, 2 undecided." in text
    assert text.count("| toy-suite | Better is better. | confirmed |") == 2
    page, text_file = write_joint([suite], [result], tmp_path)
    assert page == tmp_path / "all" / "quick" / "report.html"
    assert "Better is better." in page.read_text(encoding="utf-8")
    assert "Better is better." in text_file.read_text()


def test_results_are_written_and_read_back(suite, result: SuiteResult, tmp_path: Path):
    written = write_results(suite, result, tmp_path / "out")
    assert [file.name for file in written] == ["report.html", "results.md", "results.json"]
    assert SuiteResult.read(written[2]) == result
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "report.html",
        "results.json",
        "results.md",
    ]


def test_another_runs_results_are_not_replaced_unasked(suite, result: SuiteResult, tmp_path: Path):
    same, other = SuiteRun(suite, "quick"), SuiteRun(suite, "quick", seed=5)
    folder = check_output(same, tmp_path)
    write_results(suite, result, folder)
    assert check_output(same, tmp_path) == folder
    with pytest.raises(OutputError, match="holds another result; pass --force"):
        check_output(other, tmp_path)
    assert check_output(other, tmp_path, force=True) == folder
    (folder / "results.json").unlink()
    with pytest.raises(OutputError, match=r"results\.md: it holds another result"):
        check_output(same, tmp_path)
