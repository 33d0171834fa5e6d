"""The two suites of continual merging, at sizes of seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from transship.report import html
from transship.verbs.merge.protocol import continual_method
from transship.verbs.merge.tasks.heads import LinearHead
from transship_suites import load_suite, run_suite
from transship_suites.materials import picture_tasks as pictures
from transship_suites.otmf import declared, names
from transship_suites.otmf.claims import ours, sweep_claim, theirs
from transship_suites.otmf.declared import over_orders
from transship_suites.otmf.names import BASELINES, HEADS, MIX, OTMF, PAIRED, Way
from transship_suites.otmf.small import base_by_order
from transship_suites.otmf.trajectory import BodyView, KnownInputs, TunedTask, follow
from transship_suites.runner import (
    Case,
    Claim,
    Measurement,
    PaperTable,
    Quantity,
    Scale,
    Suite,
    SuiteResult,
    cell,
)
from transship_suites.runner.page import suite_page
from transship_suites.runner.quantities import Combined, MetricMean
from transship_suites.runner.results import CaseResult, summarise

NAMES = ("otmf-continual", "otmf-text")


# one order of these is enough for what they are there to show
ONE_ORDER = (PAIRED, names.RUNNING)


@pytest.mark.parametrize("name", NAMES)
def test_the_full_scale_has_three_orders_three_seeds_and_everything_that_the_paper_compares(name: str):
    suite = load_suite(name)
    full = suite.scales["full"]
    assert (full.seeds, full.options["orders"]) == (3, 3)
    cases = list(suite.cases(full.options))
    # as finished cases are called: other factors would make them incomparable
    assert [case for case in cases if case["part"] == "bounds"] == [{"part": "bounds"}]
    merged = [case for case in cases if case["part"] in ("continual", names.SHARED)]
    assert merged == [
        {"part": names.SHARED}  # also a point of the sweep
        if (way, order) == (OTMF, 0)
        else {"part": "continual", "method": way, "order": order}
        for way in names.WAYS
        for order in range(1 if way in ONE_ORDER else 3)
    ]
    assert set(names.WAYS) >= {*BASELINES, OTMF, MIX, "OTMF, rows", "OTMF, tensors", *ONE_ORDER}
    joint = [case for case in cases if case["part"] == "joint"]
    assert joint == [{"part": "joint", "method": way} for way in names.JOINT]
    swept = [case for case in cases if case["part"] == "sweep"]
    others = [alpha for alpha in names.ALPHAS if alpha != names.ALPHA]
    assert swept == [{"part": "sweep", "method": names.SWEPT, "alpha": alpha} for alpha in others]
    finished = [case for case in cases if case["part"] == "finish"]
    assert finished == [{"part": "finish", "kept": kept} for kept in ("all", 200)]
    assert len(cases) == 1 + len(merged) + len(joint) + len(swept) + len(finished)


def test_the_suite_of_texts_has_the_rows_and_controls_of_that_of_pictures():
    pictures_, texts = (load_suite(name) for name in NAMES)
    assert [
        (table.title, table.rows, [str(c.quantity) for c in table.columns]) for table in pictures_.tables
    ] == [(table.title, table.rows, [str(c.quantity) for c in table.columns]) for table in texts.tables]
    assert pictures_.curves == texts.curves
    assert [claim.rule for claim in pictures_.claims] == [claim.rule for claim in texts.claims]
    kinds = [
        {case["part"] for case in each.cases(each.scales["quick"].options)} for each in (pictures_, texts)
    ]
    assert kinds == [{"bounds", "continual", "joint", "finish"}] * 2


def levels_of(table: PaperTable) -> list[Mapping[str, Any]]:
    """Return what the rows select, and what cells of the columns select by themselves."""
    cells = [part for column in table.columns for part in parts_of(column.quantity)]
    return [*(row.where for row in table.rows), *(each.where for each in cells)]


def parts_of(quantity: str | Quantity) -> list[MetricMean]:
    if isinstance(quantity, Combined):
        return [cell for part in quantity.parts for cell in parts_of(part)]
    return [quantity] if isinstance(quantity, MetricMean) else []


@pytest.mark.parametrize("name", NAMES)
def test_the_unmerged_base_stands_in_every_table_and_curve(name: str):
    suite = load_suite(name)
    for table in suite.tables:
        assert any(where.get("method") == names.BASE for where in levels_of(table)), table.title
    ablation = next(table for table in suite.tables if table.title.startswith("What masks"))
    shown = {(row.where["method"], row.where["heads"]) for row in ablation.rows}
    assert {heads for method, heads in shown if method == OTMF} <= {
        heads for method, heads in shown if method == names.BASE
    }
    lines = {(row.where["method"], row.where["heads"]) for row in suite.curves[0].lines}
    for heads in (names.OWN, names.PAPER, names.CARRIED):
        assert {(names.SWEPT, heads), (names.UNSWEPT, heads)} <= lines


def test_otmf_and_the_sweep_share_a_case_where_both_are_asked_for():
    output = continual_method("otmf", dict(names.WAYS[OTMF].options))
    assert output.alpha == names.ALPHA  # type: ignore[attr-defined]

    def parts(methods: dict[str, int], alphas: list[float]) -> list[Any]:
        options = {"methods": methods, "joint": [], "alphas": alphas, "finish": []}
        return [(case["part"], case.get("order", case.get("alpha"))) for case in declared.cases(options)][1:]

    assert parts({OTMF: 2}, [0.6, 0.8]) == [(names.SHARED, None), ("continual", 1), ("sweep", 0.6)]
    assert parts({OTMF: 2}, [0.6]) == [("continual", 0), ("continual", 1), ("sweep", 0.6)]
    assert parts({"average": 1}, [0.8]) == [("continual", 0), ("sweep", 0.8)]


def arrival(seed: int) -> TunedTask:
    """A task of three classes by a linear body and head of its own."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(5, 5, bias=False)
    model.weight.data = torch.randn(5, 5, generator=generator)
    head = LinearHead(torch.randn(3, 5, generator=generator), torch.zeros(3))
    inputs, test = torch.randn(60, 5, generator=generator), torch.randn(50, 5, generator=generator)
    logits = head(model(inputs).detach())
    known = KnownInputs(inputs, logits.argmax(1), logits, 3)
    return TunedTask(f"task-{seed}", model, head, known, test, head(model(test).detach()).argmax(1))


def test_the_base_follows_each_order_as_the_papers_last_head_is_never_tuned():
    arrivals = [arrival(seed) for seed in range(3)]
    orders = [arrivals, arrivals[::-1], [arrivals[1], arrivals[2], arrivals[0]]]
    base = nn.Linear(5, 5, bias=False)
    base.weight.data = torch.eye(5)
    result = base_by_order(BodyView(base), orders)
    for order, right in zip(orders, result, strict=True):
        for heads, quality in follow(order, [base] * 3).items():  # all kinds, followed in full
            assert right[heads]["accuracy"] == pytest.approx(quality.acc)
            assert right[heads]["backward transfer"] == pytest.approx(quality.bwt)
    assert len({round(each[names.PAPER]["accuracy"], 9) for each in result}) > 1
    assert len({round(each[names.TUNED]["accuracy"], 9) for each in result}) == 1


@pytest.mark.parametrize("claim", [*ours(), *theirs(), sweep_claim()], ids=lambda claim: claim.text[:40])
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
    levels += [
        Measurement({"method": names.SWEPT, "heads": names.PAPER, "alpha": alpha}, {"accuracy": 0.5}, seed)
        for alpha in names.ALPHAS
        for seed in range(2)
    ]
    levels += [
        Measurement({"method": method, "kept": "all"}, {"accuracy": 0.5}, seed)
        for method in (names.FINISHED, names.UNFINISHED, names.UNMERGED)
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
    result = summarise(suite, "full", (0, 1, 2), cases, fingerprint="", environment={})
    claim = Claim(text="some", quantity=cell("accuracy", method="average"), at_least=0.0)
    assert sorted(over_orders(result, claim)) == sorted(values.values())
    first = Claim(text="one", quantity=cell("accuracy", method="average", order=1), at_least=0.0)
    assert over_orders(result, first) == [values[1, seed] for seed in range(3)]


def tiny(name: str, **options: Any) -> Suite:
    suite = load_suite(name)
    few = {**suite.scales["full"].options, "finish": ["all"], "finish steps": 4, **options}
    scale = Scale(seeds=1, minutes=0.1, options=few)
    return dataclasses.replace(suite, scales={**suite.scales, "quick": scale})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch):
    """Masks that are trained for two iterations on eight inputs, coefficients for two steps."""
    for ways in (names.WAYS, names.JOINT):
        for title, way in ways.items():
            options = dict(way.options)
            if way.method == "otmf":
                options = {"iterations": 2, **options, "batch_size": 8}
            if "steps" in options:
                options["steps"] = 2
            monkeypatch.setitem(ways, title, Way(way.method, options, way.strength))


def check(result: SuiteResult, suite: Suite) -> None:
    assert {claim.verdict for claim in result.claims} <= {"confirmed", "refuted", "undecided"}
    by_name = {table.title: table for table in result.tables}
    main = by_name["ACC by kind of head"]
    for row, cells in zip(main.rows, main.cells, strict=True):
        if row in (names.BASE, "average", OTMF, MIX, PAIRED):
            assert all(each.seeds == 1 and 0 <= (each.mean or 0) <= 100 for each in cells), row
    finished = by_name["Finished on kept inputs without a label, first order"]
    assert [cells[0].seeds for cells in finished.cells] == [1, 1, 1, 1]
    base, fixed = main.rows.index(names.BASE), by_name["BWT by kind of head (own heads never change)"]
    assert fixed.cells[base][0].mean == 0.0  # nothing merged, nothing forgotten
    curve = result.curves[0]
    assert curve.x == tuple(result.options["alphas"])
    # the sweep, and the base beside it
    assert [each.seeds for line in curve.points for each in line] == [1] * 6 * len(curve.x)
    swept, own = by_name["OTMF by α, first order"].cells[-1], main.cells[main.rows.index(OTMF)]
    assert [each.mean for each in swept[:2]] == [own[1].mean, own[0].mean]  # α = 0.8 is OTMF itself
    document = html.render(suite_page(suite, result))
    assert "Figures" in document
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
    joint = next(table for table in result.tables if table.title.startswith("Joint"))
    for row, cells in zip(joint.rows, joint.cells, strict=True):
        if row in ("joint TIES", "joint RegMean"):
            assert all(each.seeds == 1 for each in cells)
    drawn = [case.attachments["drawn"] for case in result.cases if case.attachments]
    assert {len(each["matrix"]["own"]) for each in drawn} == {3}


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
        methods={"average": 1, "AdaMerging, layer": 1, OTMF: 1},
        joint=["joint RegMean++", "joint Concrete"],
        alphas=[0.6, 0.8],
    )
    check(run_suite(suite, "quick", home=tmp_path), suite)
