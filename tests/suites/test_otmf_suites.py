"""The two suites of continual merging, at sizes of seconds."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from transship.suites import load_suite, run_suite
from transship.suites.runner import Case, Claim, Measurement, Scale, Suite, SuiteResult, cell
from transship.suites.runner.page import suite_page
from transship.suites.runner.results import CaseResult, summarise
from transship.suites.small_merge import names, pictures
from transship.suites.small_merge.declared import ours, theirs
from transship.suites.small_merge.figures import over_orders
from transship.suites.small_merge.names import BASELINES, HEADS, MIX, OTMF, PAIRED, Way

NAMES = ("otmf-continual", "otmf-text")


@pytest.mark.parametrize("name", NAMES)
def test_the_full_scale_has_three_orders_three_seeds_and_all_baselines(name: str):
    suite = load_suite(name)
    full = suite.scales["full"]
    assert full.seeds == 3
    cases = list(suite.cases(full.options))
    merged = {(case["method"], case["order"]) for case in cases if case["part"] == "continual"}
    wanted = [*(BASELINES if name == "otmf-continual" else ("average", "OPCM", "task arithmetic")), OTMF]
    assert set(itertools.product(wanted, range(3))) <= merged
    rows = {row.name for row in suite.tables[0].rows}
    assert set(wanted) <= rows
    assert rows >= {names.BASE}  # the control stands in the same table


def test_the_sweep_of_alpha_goes_from_nothing_to_everything():
    suite = load_suite("otmf-continual")
    alphas = [case["alpha"] for case in suite.cases(suite.scales["full"].options) if case["part"] == "sweep"]
    assert (min(alphas), max(alphas)) == (0.0, 1.0)
    assert 0.8 in alphas


@pytest.mark.parametrize("claim", [*ours(), *theirs()], ids=lambda claim: claim.text[:40])
def test_every_claim_is_decided_by_its_numbers_alone(claim: Claim):
    """With every accuracy equal the quantity is zero: only claims that ask for no margin can hold."""
    levels = [
        Measurement(
            {"method": method, "heads": heads, "order": 0}, {"accuracy": 0.5, "backward transfer": 0.0}, seed
        )
        for method in (names.BASE, *names.WAYS)
        for heads in HEADS
        for seed in range(2)
    ]
    levels += [
        Measurement({"method": method, "labels": labels, "order": 0}, {"accuracy of label heads": 0.5}, seed)
        for method in names.CONTROLLED
        for labels in names.LABEL_HEADS
        for seed in range(2)
    ]
    assert claim.quantity.per_seed(levels, [0, 1]) == [0.0, 0.0]


def test_medians_are_over_orders_and_seeds():
    suite = load_suite("otmf-continual")
    values = {(order, seed): 0.1 * order + 0.01 * seed for order in range(3) for seed in range(3)}
    cases = tuple(
        CaseResult(case, (Measurement(case.factors, {"accuracy": value}, seed),), {}, 0.0)
        for (order, seed), value in values.items()
        for case in [Case({"method": "average", "order": order}, seed)]
    )
    result = summarise(suite, "full", (0, 1, 2), cases, planned=9, fingerprint="", environment={})
    claim = Claim(text="some", quantity=cell("accuracy", method="average"), at_least=0.0)
    assert sorted(over_orders(result, claim)) == sorted(values.values())
    first = Claim(text="one", quantity=cell("accuracy", method="average", order=1), at_least=0.0)
    assert over_orders(result, first) == [values[1, seed] for seed in range(3)]


def tiny(name: str, **options: Any) -> Suite:
    declared = load_suite(name)
    scale = Scale(seeds=2, minutes=0.1, options={**declared.scales["full"].options, **options})
    return dataclasses.replace(declared, scales={**declared.scales, "quick": scale})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch):
    """Masks that are trained for two iterations on eight inputs."""
    for title, way in names.WAYS.items():
        if way.method == "otmf":
            options = {"iterations": 2, **way.options, "batch_size": 8}
            monkeypatch.setitem(names.WAYS, title, Way("otmf", options))


def check(result: SuiteResult, suite: Suite) -> None:
    assert {claim.verdict for claim in result.claims} <= {"confirmed", "refuted", "undecided"}
    by_name = {table.title: table for table in result.tables}
    main = by_name["ACC by kind of head"]
    for row, cells in zip(main.rows, main.cells, strict=True):
        if row in (names.BASE, "average", OTMF, MIX, PAIRED):
            assert all(one.seeds == 2 and 0 <= (one.mean or 0) <= 100 for one in cells), row
    base, fixed = main.rows.index(names.BASE), by_name["BWT by kind of head (own heads never change)"]
    assert fixed.cells[base][0].mean == 0.0  # nothing merged, nothing forgotten
    html = suite_page(suite, result).to_html()
    assert "Figures" in html
    assert len(result.dumps()) < 600_000


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_small_run_on_pictures(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures, "POOL", {"train": 300, "test": 120})
    pictures.load_task.cache_clear()
    methods = {"average": 2, "OPCM": 1, OTMF: 1, MIX: 1, PAIRED: 1}
    suite = tiny(
        "otmf-continual",
        tasks=["usps", "clothes-5-9", "turns"],
        rows=80,
        test=40,
        pretrain=5,
        tune=5,
        orders=2,
        methods=methods,
        joint=["joint TIES", "joint RegMean"],
        alphas=[0.8],
    )
    result = run_suite(suite, "quick", home=tmp_path)
    pictures.load_task.cache_clear()
    check(result, suite)
    assert result.curves[0].x == (0.8,)
    joint = next(table for table in result.tables if table.title.startswith("Joint"))
    for row, cells in zip(joint.rows, joint.cells, strict=True):
        if row in ("joint TIES", "joint RegMean"):
            assert all(one.seeds == 2 for one in cells)
    drawn = [case.attachments["drawn"] for case in result.cases if case.attachments]
    assert {len(one["matrix"]["own"]) for one in drawn} == {3}


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_small_run_on_texts(tmp_path: Path, data_dir: Path, models_dir: Path):
    suite = tiny(
        "otmf-text",
        tasks=["trec", "spam"],
        rows=60,
        test=30,
        blocks=1,
        tokens=8,
        tune=3,
        orders=1,
        methods={"average": 1, OTMF: 1},
    )
    check(run_suite(suite, "quick", home=tmp_path), suite)
