"""The suites' own code on a few pictures and steps: parts run and fill the rows that their tables show."""

import pytest

from transship.suites import load_suite, theseus_width
from transship.suites.runner import Case, Context
from transship.suites.runner.cache import Cache
from transship.suites.small_vision import bench

TINY = {"pretrain": 6, "tune": 3, "batches": [1], "shots": [1], "warm": [0, 2]}


@pytest.fixture
def tiny(data_dir, monkeypatch):
    rows = {
        "PRETRAIN_ROWS": 1600,
        "TUNE_ROWS": 400,
        "CALIBRATION_ROWS": 400,
        "TEST_ROWS": 60,
        "VALIDATION_ROWS": 40,
        "CLEAN_ROWS": 20,
    }
    for name, count in rows.items():
        monkeypatch.setattr(bench, name, count)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["budget", "finer"])
def test_a_part_of_theseus_width_fills_its_rows(tiny, tmp_path, part):
    case = Case({"part": part, "task": "rotation"}, 0)
    found = list(theseus_width.run(case, Context("theseus-width", case, TINY, Cache(tmp_path))))
    measured = {(one.factors["method"], one.factors.get("depth"), one.factors.get("align")) for one in found}
    suite = load_suite("theseus-width")
    wanted = {
        (row.where["method"], row.where.get("depth"), row.where.get("align"))
        for table in suite.tables
        for row in table.rows
        if row.where.get("part") == part
    }
    assert wanted <= measured
    for one in found:
        assert {"accuracy", "share", "clean"} <= set(one.metrics)


@pytest.mark.parametrize("name", ["theseus-width", "theseus-text"])
def test_claims_read_rows_that_the_quick_scale_measures(name):
    suite = load_suite(name)
    cases = list(suite.cases(suite.scales["quick"].options))
    assert cases
    assert all(str(claim.quantity) for claim in suite.claims)
