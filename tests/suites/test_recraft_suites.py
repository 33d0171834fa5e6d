import pytest

from transship.registry import build_method
from transship.suites.cross_modal.rows import CORE, OTHERS, TITLES
from transship.suites.runner import Case, Context, load_suite
from transship.suites.runner.cache import Cache


@pytest.mark.parametrize("name", ["recraft-series", "recraft-grid"])
def test_every_scale_lists_each_case_once_and_the_core_rows_on_every_task(name: str):
    suite = load_suite(name)
    for scale in suite.scales.values():
        cases = [tuple(sorted(case.items())) for case in suite.cases(scale.options)]
        assert len(cases) == len(set(cases))
        for variant, own in scale.options["variants"].items():
            for task in own.get("tasks", own.get("parts")):
                parts = {
                    dict(case)["part"]
                    for case in cases
                    if (dict(case)["variant"], dict(case)["task"]) == (variant, task)
                }
                unaided = {"raw"}
                assert {*unaided, "nft", "recraft", "fa", "fa-warm"} <= parts
                assert parts - {"raw", "fno"} <= set(TITLES)


def test_claims_of_every_run_are_judged_run_by_run():
    for claim in load_suite("recraft-series").claims:
        assert claim.every == claim.text.startswith("In every run")


@pytest.mark.parametrize("name", ["recraft-series", "recraft-grid"])
def test_no_row_or_claim_passes_for_the_default_of_adapt_fit(name: str):
    suite = load_suite(name)
    said = [claim.text for claim in suite.claims]
    said += [row.name for table in suite.tables for row in table.rows]
    assert not [text for text in said if "adapt fit" in text]
    assert "The default of `adapt fit` is not measured" in suite.summary
    default = build_method("adapt", "recraft")
    for scale in ("full", "large"):
        for own in suite.scales[scale].options["variants"].values():
            for option, value in own["methods"]["hybrid"].items():
                if value != getattr(default, option):
                    assert f"`{option}`" in suite.summary


def test_the_large_scale_has_every_row():
    suite = load_suite("recraft-series")
    parts = {case["part"] for case in suite.cases(suite.scales["large"].options)}
    assert {*CORE, *OTHERS, "raw", "fno"} == parts
    assert suite.scales["full"].seeds == 5


def test_methods_of_the_rows_exist():
    from transship.registry import method_names

    assert {*CORE, *OTHERS} - {"nft*", "hybrid"} <= set(method_names("adapt"))


def test_the_raw_part_of_a_case_runs_without_a_model(tmp_path):
    suite = load_suite("recraft-series")
    case = Case({"variant": "low", "task": "waves", "backbone": "none", "part": "raw"}, 0)
    context = Context(suite.name, case, suite.scales["quick"].options, Cache(tmp_path))
    found = {one.factors["method"]: one.metrics["accuracy"] for one in suite.run(case, context)}
    assert found["rocket"] > max(found["logistic"], found["ridge"], found["constant"])


def test_a_variant_with_fewer_seeds_leaves_the_others_out(tmp_path):
    suite = load_suite("recraft-series")
    options = suite.scales["full"].options
    case = {"variant": "all", "task": "ECG5000", "backbone": "minilm-l6", "part": "nft"}
    for seed in (2, 3, 4, 7):
        context = Context(suite.name, Case(case, seed), options, Cache(tmp_path))
        assert not list(suite.run(Case(case, seed), context))


@pytest.mark.slow
def test_a_case_of_the_series_suite_adapts_a_real_encoder(tmp_path, minilm):
    suite = load_suite("recraft-series")
    own = dict(suite.scales["quick"].options["variants"]["low"])
    own |= {"rows": 40, "test": 20, "settings": {**own["settings"], "epochs": 1}}
    case = Case({"variant": "low", "task": "waves", "backbone": str(minilm), "part": "nft"}, 0)
    context = Context(suite.name, case, {"seeds": 1, "variants": {"low": own}}, Cache(tmp_path))
    (found,) = suite.run(case, context)
    assert found.factors["method"] == "nft"
    assert 0 <= found.metrics["accuracy"] <= 1
    assert found.metrics["stage2_seconds"] > 0
