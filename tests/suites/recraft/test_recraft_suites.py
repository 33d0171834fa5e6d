import pytest

from transship.registry import build_method
from transship_suites.materials.origins import FIELDS, UCR
from transship_suites.materials.targets import series_task
from transship_suites.recraft import measure, worth
from transship_suites.recraft.declared import CORE, DEFAULT, EQUAL_TIME, OTHERS, RAW_NAMES, TITLES
from transship_suites.recraft.measure import parameters
from transship_suites.runner import Case, Context, Measurement, judge, load_suite
from transship_suites.runner.context import Cache


@pytest.mark.parametrize("name", ["recraft-series", "recraft-grid", "recraft-symbols"])
def test_every_scale_lists_each_case_once_and_the_core_rows_on_every_task(name: str):
    suite = load_suite(name)
    for scale in suite.scales.values():
        cases = [tuple(sorted(case.items())) for case in suite.cases(scale.options)]
        assert len(cases) == len(set(cases))
        for variant, own in scale.options["variants"].items():
            if variant == worth.VARIANT:
                continue
            for task in own.get("tasks", own.get("parts")):
                parts = {
                    dict(case)["part"]
                    for case in cases
                    if (dict(case)["variant"], dict(case)["task"]) == (variant, task)
                }
                unaided = {"raw"}
                assert {*unaided, "nft", "recraft", "fa", "fa-warm"} <= parts
                assert parts - {"raw", "fno"} <= {*TITLES, *own.get("changes", ())}


def test_claims_of_every_run_are_judged_run_by_run():
    for claim in load_suite("recraft-series").claims:
        assert claim.every == claim.text.startswith("In every run")


def test_only_the_row_that_is_told_nothing_passes_for_the_default_of_adapt_fit():
    task = series_task("waves", rows=30, test=5, seed=0)
    settings = {"epochs": 8, "batch_size": 16, "method_options": {"keep": 1.0}}
    assert parameters(task, DEFAULT, settings) == {"base": "auto"}  # as the command has it
    assert parameters(task, "recraft", settings)["predictor"] == "linear"
    suite = load_suite("recraft-series")
    rows = [row for table in suite.tables for row in table.rows if "adapt fit" in row.name]
    assert [row.where["method"] for row in rows] == [DEFAULT]
    for claim in suite.claims:
        assert ("adapt fit" in claim.text) == (DEFAULT in str(claim.quantity))
    grid = load_suite("recraft-grid")
    assert not [claim.text for claim in grid.claims if "adapt fit" in claim.text]
    assert "The default of `adapt fit` is not measured" in grid.summary


@pytest.mark.parametrize("name", ["recraft-series", "recraft-grid", "recraft-symbols"])
def test_what_stage_one_does_otherwise_than_by_default_is_said(name: str):
    suite, default = load_suite(name), build_method("adapt", "recraft")
    for scale in set(suite.scales) - {"quick"}:
        for own in suite.scales[scale].options["variants"].values():
            for option, value in own["methods"]["hybrid"].items():
                if value != getattr(default, option):
                    assert f"`{option}`" in suite.summary


def test_the_full_scale_has_every_row():
    suite = load_suite("recraft-series")
    parts = {case["part"] for case in suite.cases(suite.scales["full"].options)}
    assert {*CORE, *OTHERS, DEFAULT, "raw", "fno", *worth.CHANGES, *worth.OF_STEM, *worth.BESIDE} == parts


def test_the_full_scale_has_every_row_with_five_seeds_on_few_and_on_all_rows():
    full = load_suite("recraft-series").scales["full"]
    assert full.seeds == full.options["seeds"] == 5
    by_name: dict[tuple[str, int | None], set[str]] = {}
    for variant, own in full.options["variants"].items():
        assert not {"seeds", "part_seeds"} & set(own)
        for task in own["tasks"] if variant not in (worth.VARIANT, "second") else ():
            by_name.setdefault((task, own["rows"]), set()).update(own["backbones"]["minilm-l6"])
    assert set(by_name) == {
        *((name, size) for name in UCR for size in (300, None)),
        *((name, 200) for name in FIELDS),
        ("waves", 300),
    }
    assert all(parts == {*CORE, *OTHERS} for parts in by_name.values())


def test_nft_at_equal_time_has_more_of_whatever_the_budget_counts():
    task = series_task("waves", rows=30, test=5, seed=0)
    by_epochs = parameters(task, EQUAL_TIME, {"epochs": 8}, longer=1.65)
    by_steps = parameters(task, EQUAL_TIME, {"epochs": 8, "steps": 160}, longer=1.65)
    assert (by_epochs["epochs"], by_steps["steps"]) == (13, 264)


def test_every_claim_has_a_value_in_every_seed_of_the_full_scale(monkeypatch, tmp_path):
    """A claim without one in some seed could never be decided."""

    def stood_in(task, part, context, *, backbone, options):
        names = RAW_NAMES if part.startswith("raw") else [part]
        metrics = {"accuracy": 0.5, "w1_ratio": 1.0, "fld_drop": 0.2}
        yield from (Measurement({"method": name}, metrics) for name in names)

    monkeypatch.setattr(measure, "measured", stood_in)
    monkeypatch.setattr(measure, "series_task", lambda *arguments, **options: None)
    suite = load_suite("recraft-series")
    options, entries = suite.scales["full"].options, []
    for factors in suite.cases(options):
        for seed in range(5):
            case = Case(factors, seed)
            context = Context(suite.name, case, options, Cache(tmp_path))
            for each in suite.run(case, context):
                entries.append(Measurement({**factors, **each.factors}, each.metrics, seed))
    for claim in suite.claims:
        assert None not in judge(claim, entries, range(5)).per_seed, claim.text
    shown = {row.name for row in worth.table_rows()}
    assert len(shown) == len(worth.table_rows())
    for row in worth.table_rows():
        for column in worth.table_columns()[2:4]:
            assert None not in column.within(row).per_seed(entries, range(5)), row.name


def test_the_seeds_of_the_question_take_its_series_in_turn(monkeypatch, tmp_path):
    monkeypatch.setattr(
        measure, "measured", lambda task, *a, **k: iter([Measurement({"method": task.name}, {})])
    )
    suite = load_suite("recraft-series")
    options = suite.scales["full"].options
    for seed in range(5):
        seen = []
        for task in worth.SERIES:
            factors = {"variant": worth.VARIANT, "task": task, "backbone": "minilm-l6"}
            case = Case({**factors, "part": "three times the rows"}, seed)
            if task == "waves" or seed % 2:  # generated: no data set is needed
                seen += list(suite.run(case, Context(suite.name, case, options, Cache(tmp_path))))
        expected = [({"method": "waves", "rows": worth.MORE})] if seed % 2 else []
        assert [dict(each.factors) for each in seen] == expected


def test_methods_of_the_rows_exist():
    from transship.registry import method_names

    assert {*CORE, *OTHERS} - {"nft*", "hybrid"} <= set(method_names("adapt"))


def test_the_raw_part_of_a_case_runs_without_a_model(tmp_path):
    suite = load_suite("recraft-series")
    case = Case({"variant": "low", "task": "waves", "backbone": "none", "part": "raw"}, 0)
    context = Context(suite.name, case, suite.scales["quick"].options, Cache(tmp_path))
    by_name = {each.factors["method"]: each.metrics["accuracy"] for each in suite.run(case, context)}
    assert by_name["rocket"] > max(by_name["logistic"], by_name["ridge"], by_name["constant"])


@pytest.mark.slow
def test_a_case_of_the_series_suite_adapts_a_real_encoder(tmp_path, minilm):
    suite = load_suite("recraft-series")
    own = dict(suite.scales["quick"].options["variants"]["low"])
    own |= {"rows": 40, "test": 20, "settings": {**own["settings"], "epochs": 1}}
    case = Case({"variant": "low", "task": "waves", "backbone": str(minilm), "part": "nft"}, 0)
    context = Context(suite.name, case, {"seeds": 1, "variants": {"low": own}}, Cache(tmp_path))
    (result,) = suite.run(case, context)
    assert result.factors["method"] == "nft"
    assert 0 <= result.metrics["accuracy"] <= 1
    assert result.metrics["stage2_seconds"] > 0
