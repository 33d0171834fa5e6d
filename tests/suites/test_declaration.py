from __future__ import annotations

import dataclasses
import pkgutil
import re
from typing import Any

import pytest

from transship_suites import load_suite, suite_names
from transship_suites.runner import Case, Condition, Heading, MeasuredBy, PaperTable, Suite, product
from transship_suites.runner.quantities import Combined, MetricMean, Quantity

ROWS = (Condition("a"), Condition("b"))
_PLACES = (
    r"(PyPI|npm|Debian) package [a-z]|github\.com/\w|^hub (model|data set)|^pip install|^comes with"
    r"|doi:|\.edu|GB on the card"
)
# suite → why none of its tables can show a paper's figure although it re-runs one of the paper's tables
WITHOUT_FIGURES: dict[str, str] = {}


def test_product_lists_every_combination():
    assert product(x=[1, 2], y=["p"]) == [{"x": 1, "y": "p"}, {"x": 2, "y": "p"}]


def test_a_case_reads_as_its_factors():
    case = Case({"method": "theseus", "batches": 10}, 3)
    assert (case["batches"], str(case)) == (10, "method theseus, batches 10, seed 3")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"paper": {("c", "x"): 1.0}, "paper_source": "T", "setting": "s"}, "have no cell"),
        ({"paper": {("a", "x"): 1.0}, "paper_source": "T"}, "without their source and setting"),
        ({"rows": (Condition("a"), Condition("a"))}, "two rows of 't' have the same name"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        PaperTable(**{"title": "t", "rows": ROWS, "columns": (Heading("x", "x"),), **options})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scales": {}}, "no quick or no full"),
        ({"claims": ()}, "no claim or no table"),
        ({"tables": ()}, "no claim or no table"),
    ],
)
def test_a_suite_without_its_parts_is_refused(toy, change: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(load_suite("toy-suite", toy()), **change)


def _cells(quantity: Quantity) -> list[MetricMean]:
    if isinstance(quantity, Combined):
        return [cell for part in quantity.parts for cell in _cells(part)]
    inner = getattr(quantity, "quantity", None)  # a suite's own quantity made of another one
    if isinstance(inner, Quantity):
        return _cells(inner)
    return [quantity] if isinstance(quantity, MetricMean) else []


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_keeps_the_contract(name: str):
    suite: Suite = load_suite(name)
    assert suite.summary
    assert suite.paper.title
    assert all(claim.source for claim in suite.claims), "a claim says where it stands"
    for name, scale in suite.scales.items():
        assert scale.seeds >= 2, "below two seeds no claim can be decided"
        assert list(suite.cases(scale.options))
        for need in suite.needs_at(name):
            assert need.source, "a need says where it comes from"
            assert not re.search(r"get-data|get-models|registry|list|the same", need.source), need
            assert re.search(_PLACES, need.source), f"{need} names no place that a user can go to"
    if "paper" not in suite.scales:
        assert suite.scales["quick"].minutes < suite.scales["full"].minutes
    assert all(_cells(claim.quantity) for claim in suite.claims)
    assert isinstance(suite.run, MeasuredBy)
    assert callable(pkgutil.resolve_name(suite.run.name))


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_that_re_runs_a_table_prints_the_papers_figures(name: str):
    suite = load_suite(name)
    if "PaperTable" in suite.paper.where and name not in WITHOUT_FIGURES:
        assert any(table.paper for table in suite.tables), (
            f"{suite.paper.where}: no figure stands beside ours"
        )


def test_figures_of_one_paper_are_the_same_in_two_suites():
    """`theseus-clip` has whole rows of the paper, `theseus-width` their means beside our own."""
    own = load_suite("theseus-clip").tables
    means = {value for table in own for (_, column), value in table.paper.items() if column == "mean"}
    shown = [
        (table.title, row, value)
        for table in load_suite("theseus-width").tables
        for (row, column), value in table.paper.items()
        if column == "accuracy"
    ]
    assert shown
    assert [each for each in shown if each[2] not in means] == []
