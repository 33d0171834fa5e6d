"""The suites' own code on few pictures, texts and steps: what tables, claims and curves show is measured."""

import dataclasses
import json
import shutil

import pytest
import torch

from transship.finish.settings import STEPS
from transship_suites import load_suite
from transship_suites.materials import small_vision as networks
from transship_suites.runner import Case, Context, Measurement, PaperTable, Suite
from transship_suites.runner.context import Cache
from transship_suites.runner.quantities import Combined, MetricMean, Quantity
from transship_suites.theseus import small as bench
from transship_suites.theseus.declared import AUTO, BOUNDS
from transship_suites.theseus.work import Work

FEW_STEPS = {"pretrain": 6, "tune": 6, "warm": [0, 1, 2]}
FEW_ROWS = {
    "PRETRAIN_ROWS": 2400,
    "TUNE_ROWS": 400,
    "CALIBRATION_ROWS": 900,
    "TEST_ROWS": 60,
    "VALIDATION_ROWS": 40,
    "CLEAN_ROWS": 20,
}
PARTS = ("wider", "narrower", "budget", "same", "deeper", "finer")
# trained or fitted on the target itself, so that there is no strength
UNMOVED = (
    *BOUNDS,
    "finish",
    "random update, finish",
    "untouched target, finish",
    f"{AUTO}, its",
    "40 training steps",
    "160 training steps",
    "ridge head",
)


@pytest.fixture
def few_pictures(data_dir, monkeypatch):
    for name, count in FEW_ROWS.items():
        monkeypatch.setattr(networks if name == "PRETRAIN_ROWS" else bench, name, count)


@pytest.fixture
def few_lessons(monkeypatch):
    """Finishes of four steps, which is what their rows and controls take and not what they reach."""
    whole = Work.finish

    def short(work: Work, result: object, finish: str, *, keep: object = None) -> object:
        return whole(work, result, f"{finish.partition(':')[0]}:4", keep=keep)

    monkeypatch.setattr(Work, "finish", short)
    for moves in STEPS:
        monkeypatch.setitem(STEPS, moves, min(4, STEPS[moves]))


def cells_of(quantity: Quantity) -> list[MetricMean]:
    """The cells that a quantity reads."""
    if isinstance(quantity, Combined):
        return [cell for part in quantity.parts for cell in cells_of(part)]
    return [quantity] if isinstance(quantity, MetricMean) else []


def claimed(suite: Suite) -> list[MetricMean]:
    return [cell for claim in suite.claims for cell in cells_of(claim.quantity)]


def measured_by(suite_name: str, factors: dict, options: dict, cache) -> list[Measurement]:
    """What a case of a suite measures, with its own factors as the runner adds them."""
    suite, case = load_suite(suite_name), Case(factors, 0)
    result = suite.run(case, Context(suite_name, case, options, Cache(cache)))
    return [Measurement({**factors, **each.factors}, each.metrics) for each in result]


def missing_cells(suite: Suite, found: list[Measurement], belongs) -> list[str]:
    """The declared cells among those that belong to a case for which nothing was measured."""
    wanted = [
        column.within(row)
        for table in suite.tables
        for row in table.rows
        if belongs(row.where)
        for column in table.columns
        if column.name != "strength" or not row.name.startswith(UNMOVED)
    ]
    assert wanted, "no table shows this case"
    wanted += [cell for cell in claimed(suite) if belongs(cell.where)]
    return [str(each) for each in wanted if each.per_seed(found, [0]) == [None]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A cache for all parts, which share the networks that they begin with."""
    return tmp_path_factory.mktemp("trained")


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("few_pictures", "few_lessons")
def test_a_part_of_theseus_width_measures_every_row_claim_and_curve_of_it(trained, part):
    suite = load_suite("theseus-width")
    options = {**suite.scales["full"].options, **FEW_STEPS}
    measured = measured_by("theseus-width", {"part": part, "task": "rotation"}, options, trained)
    assert not missing_cells(suite, measured, lambda where: where["part"] == part)
    for curve in suite.curves:
        if curve.quantity.where["part"] != part:
            continue
        levels = options[{"batches": "batches", "steps": "warm"}[curve.x]]
        assert len(levels) > 2
        for line in curve.lines:
            for level in levels:
                quantity = curve.quantity.within({**line.where, curve.x: level})
                assert quantity.per_seed(measured, [0]) != [None], str(quantity)


def test_the_parts_of_theseus_width_are_all_run_and_its_claims_rest_on_what_quick_runs():
    suite = load_suite("theseus-width")
    shown = {row.where["part"] for table in suite.tables for row in table.rows}
    drawn = {curve.quantity.where["part"] for curve in suite.curves}
    full = suite.scales["full"].options
    run = {case["part"] for case in suite.cases(full)}
    assert set(PARTS) == run == shown | drawn
    quick = {case["part"] for case in suite.cases(suite.scales["quick"].options)}
    assert {cell.where["part"] for cell in claimed(suite)} <= quick
    for row in (row for table in suite.tables for row in table.rows):
        assert row.where.get("shots", 1) in full["shots"]
        assert row.where.get("batches", 10) in full["batches"]


# width of a small encoder that stands for each of the suite's; those of one width are of one there too
ENCODERS = {
    "minilm-l6": 16,
    "minilm-l6-sre": 16,
    "minilm-l3": 16,
    "granite-small": 16,
    "bge-small": 16,
    "mpnet-base": 24,
    "distilbert-768": 24,
}


@pytest.fixture
def small_encoders(minilm, data_dir, tmp_path, monkeypatch):
    """Random encoders under the names of the suite's, few texts and two strengths."""
    from transformers import BertConfig, BertModel

    from transship_suites.materials import texts as tasks
    from transship_suites.theseus import text as text_bench

    for seed, (name, width) in enumerate(ENCODERS.items()):
        shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2}
        config = BertConfig(num_hidden_layers=2, **shape)
        relative = name == "minilm-l6-sre"  # a fine-tune of the first
        torch.manual_seed(0 if relative else seed)
        model = BertModel(config, add_pooling_layer=False)
        for parameter in model.parameters():
            parameter.data.add_(0.2 * torch.randn(parameter.shape))
        if relative:
            for parameter in model.parameters():
                parameter.data.add_(0.01 * torch.randn(parameter.shape))
        model.save_pretrained(tmp_path / "models" / name)
        for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
            shutil.copy(minilm / file, tmp_path / "models" / name / file)
    load = tasks.load_texts

    def some(task: str, most_test: int = 20) -> tasks.Texts:
        whole = load(task, 20)
        rows = range(0, len(whole.train), len(whole.train) // 96)[:96]  # of all classes, which may be sorted
        train, labels = [whole.train[row] for row in rows], whole.train_labels[list(rows)]
        return dataclasses.replace(whole, train=train, train_labels=labels)

    monkeypatch.setenv("TRANSSHIP_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(text_bench, "load_texts", some)
    monkeypatch.setattr(text_bench, "GRID", (0.0, 4.0))
    monkeypatch.setattr(text_bench, "PENALTIES", (1.0,))


def columns_filled_by(method: str, table: PaperTable) -> set[str]:
    """The columns that a row of a table of texts fills."""
    titles = {column.name for column in table.columns}
    probes = {title for title in titles if title.startswith("probe")}
    if not probes:  # the published fine-tune
        return titles - ({"strength"} if method in ("source", "untouched") else set())
    known = {
        "source fine-tuned": {"accuracy", *probes},
        "source": probes,
        "frozen source carried": {"carry, 1000 inputs"},
    }
    return known.get(method, titles - {"accuracy"})


@pytest.mark.slow
def test_the_cases_of_theseus_text_measure_every_row_and_claim(small_encoders, tmp_path):
    suite = load_suite("theseus-text")
    options = suite.scales["full"].options
    entries = [
        each
        for case in suite.cases(options)
        for each in measured_by("theseus-text", dict(case), dict(options), tmp_path / "cache")
    ]
    missing = [
        f"{table.title}, {row.name}: {column.name}"
        for table in suite.tables
        for row in table.rows
        for column in table.columns
        if column.name in columns_filled_by(str(row.where["method"]), table)
        and column.within(row).per_seed(entries, [0]) == [None]
    ]
    missing += [str(cell) for cell in claimed(suite) if cell.per_seed(entries, [0]) == [None]]
    assert not missing


def test_the_claims_of_theseus_text_rest_on_cases_with_several_seeds_that_full_runs():
    suite = load_suite("theseus-text")
    options = suite.scales["full"].options
    several = {(task, target) for task, targets in options["main"].items() for target in targets}
    assert {(cell.where["task"], cell.where["target"]) for cell in claimed(suite)} <= several
    assert several <= {(case["task"], case["target"]) for case in suite.cases(options)}


def test_encoders_of_one_width_in_theseus_text_are_of_one_width(models_dir):
    def width(name: str) -> int:
        config = json.loads((models_dir / name / "config.json").read_text(encoding="utf-8"))
        return int(config.get("hidden_size") or config["dim"])

    for name, small in ENCODERS.items():
        assert (width(name) == width("minilm-l6")) == (small == ENCODERS["minilm-l6"]), name
