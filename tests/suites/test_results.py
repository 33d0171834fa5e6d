from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from transship.errors import DataError
from transship_suites import SuiteResult, load_suite, run_suite
from transship_suites.runner.declaration import Condition
from transship_suites.runner.results import SCHEMA


@pytest.fixture
def result(toy) -> SuiteResult:
    return run_suite(load_suite("toy-suite", toy()), "quick")


def test_json_gives_the_result_back(result: SuiteResult, tmp_path: Path):
    file = tmp_path / "results.json"
    file.write_text(result.dumps(), encoding="utf-8")
    assert SuiteResult.read(file) == result
    assert SuiteResult.read(file).dumps() == result.dumps()


def test_json_carries_schema_versions_timings_and_what_was_measured(result: SuiteResult):
    value = json.loads(result.dumps())
    assert value["schema"] == SCHEMA
    assert {"transship", "python", "torch", "numpy", "threads"} <= set(value["environment"])
    assert value["seconds"] >= 0
    assert all(case["seconds"] >= 0 for case in value["cases"])
    assert value["cases"][0]["case"] == {"factors": {"method": "plain"}, "seed": 0}
    assert len(value["cases"][0]["attachments"]["weights"]) == 8
    assert value["claims"][0]["verdict"] == "confirmed"
    assert len(value["claims"][0]["per_seed"]) == 3
    assert value["tables"][0]["paper"] == [[None, None], [1.25, None]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value.update(schema=99), r"no suite result of schema 1 \(found 99\)"),
        (lambda value: value.pop("schema"), r"no suite result of schema 1 \(found None\)"),
        (lambda value: value.pop("claims"), "damaged"),
        (lambda value: value["claims"][0].update(verdict="proven"), "damaged"),
        (lambda value: value.update(surprise=1), "damaged"),
    ],
)
def test_other_json_is_refused_by_name(result: SuiteResult, tmp_path: Path, change, said: str):
    value = json.loads(result.dumps())
    change(value)
    file = tmp_path / "results.json"
    file.write_text(json.dumps(value))
    with pytest.raises(DataError, match=rf"results\.json: .*{said}.*; run the suite again"):
        SuiteResult.read(file)


def test_what_is_no_json_is_refused(tmp_path: Path):
    file = tmp_path / "results.json"
    file.write_text("{")
    with pytest.raises(DataError, match="it is no JSON"):
        SuiteResult.read(file)


def test_rows_and_tables_that_a_scale_did_not_measure_are_left_out(toy):
    suite = load_suite("toy-suite", toy())
    table = suite.tables[0]
    strange = Condition("never measured", {"method": "none"})
    wider = replace(table, rows=(*table.rows, strange))
    empty = replace(table, title="nothing of it", rows=(strange,), paper={})
    result = run_suite(replace(suite, tables=(wider, empty)), "quick")
    assert [table.title for table in result.tables] == [table.title]
    assert result.tables[0].rows == tuple(row.name for row in table.rows)
    assert len(result.tables[0].paper) == len(table.rows)
