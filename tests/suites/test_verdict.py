from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from transship_suites.runner import Claim, Measurement, cell, judge, spread
from transship_suites.runner.verdict import EveryRun, across_kernels

finite = st.floats(-1e3, 1e3)


def measured(left: list[float | None], right: list[float | None]) -> list[Measurement]:
    return [
        Measurement({"row": row}, {"score": value}, seed)
        for row, values in (("left", left), ("right", right))
        for seed, value in enumerate(values)
    ]


def verdict(left: list[float | None], right: list[float | None], **bounds: float) -> str:
    claim = Claim(text="c", quantity=cell("score", row="left") - cell("score", row="right"), **bounds)
    return judge(claim, measured(left, right), range(len(left))).verdict


@given(values=st.lists(finite, min_size=2, max_size=12), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_spread_and_interval_equal_numpy_and_scipy(values: list[float], confidence: float):
    actual = spread(values)
    assert actual.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert actual.sd == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert actual.seeds == len(values)
    error = scipy.stats.sem(values)
    if error > 1e-9:
        expected = scipy.stats.t.interval(confidence, len(values) - 1, np.mean(values), error)
        assert actual.interval(confidence) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_the_paired_interval_equals_the_paired_t_test():
    rng = np.random.default_rng(0)
    left, right = rng.normal(1, 1, 6).tolist(), rng.normal(0, 1, 6).tolist()
    claim = Claim(text="c", quantity=cell("score", row="left") - cell("score", row="right"), at_least=0)
    judgement = judge(claim, measured(left, right), range(6))
    expected = scipy.stats.ttest_rel(left, right).confidence_interval(0.95)
    assert (judgement.low, judgement.high) == pytest.approx((expected.low, expected.high))


def test_each_verdict_is_reached_by_its_numbers():
    left = [0.80, 0.82, 0.81]
    assert verdict(left, [0.70, 0.72, 0.71], at_least=0.05) == "confirmed"
    assert verdict(left, [0.79, 0.81, 0.80], at_least=0.05) == "refuted"
    assert verdict(left, [0.70, 0.80, 0.75], at_least=0.05) == "undecided"
    assert verdict(left, [0.79, 0.81, 0.80], at_most=0.05) == "confirmed"
    assert verdict(left, [0.70, 0.72, 0.71], at_most=0.05) == "refuted"
    assert verdict(left, [0.79, 0.81, 0.80], at_least=-0.02, at_most=0.02) == "confirmed"
    assert verdict(left, [0.70, 0.72, 0.71], at_least=-0.02, at_most=0.02) == "refuted"


def test_pairing_decides_where_seeds_differ_more_than_rows():
    left, right = [0.1, 0.5, 0.9], [0.05, 0.451, 0.849]
    assert verdict(left, right, at_least=0.0) == "confirmed"
    assert verdict(left, right[::-1], at_least=0.0) == "undecided"


def test_a_bound_that_the_interval_touches_is_kept():
    assert verdict([1.0, 1.0], [0.5, 0.5], at_least=0.5) == "confirmed"


def test_one_seed_or_a_missing_value_decides_nothing():
    assert verdict([1.0], [0.0], at_least=0.1) == "undecided"
    claim = Claim(text="c", quantity=cell("score", row="left"), at_least=0.0)
    judgement = judge(claim, measured([1.0, None, 1.1], [0.0] * 3), range(3))
    assert (judgement.verdict, judgement.reason, judgement.low) == ("undecided", "no value for seed 1", None)


def test_the_rule_is_stated_with_quantity_bound_and_confidence():
    claim = Claim(text="c", quantity=cell("score", row="left"), at_least=0.9, confidence=0.9)
    assert claim.rule == (
        "confirmed if the whole 90 % t-interval over seeds of score (row left) is ≥ 0.9; "
        "refuted if it lies wholly outside; undecided otherwise"
    )


@pytest.mark.parametrize(
    ("values", "bounds", "decided", "reason"),
    [
        ([1.12, 1.0, 1.0, 1.0, 1.0], {"at_most": 1.1}, "refuted", "the worst of 5 seeds is 1.12 (seed 0)"),
        ([1.1, 1.0, 1.0, 1.0, 0.2], {"at_most": 1.1}, "confirmed", "the worst of 5 seeds is 1.1 (seed 0)"),
        ([0.4, 0.5, 0.09], {"at_least": 0.1}, "refuted", "the worst of 3 seeds is 0.09 (seed 2)"),
        ([0.4, 3.0, 0.0], {"at_least": 0.1, "at_most": 1.0}, "refuted", "the worst of 3 seeds is 3 (seed 1)"),
        ([0.4, None, 0.5], {"at_most": 1.0}, "undecided", "no value for seed 1"),
        ([0.4], {"at_most": 1.0}, "undecided", "one seed has no spread"),
    ],
)
def test_a_claim_of_every_run_is_decided_by_the_worst_of_them(
    values: list[float | None], bounds: dict[str, float], decided: str, reason: str
):
    claim = EveryRun(text="c", quantity=cell("score", row="left"), **bounds)
    judgement = judge(claim, measured(values, []), range(len(values)))
    assert (judgement.verdict, judgement.low, judgement.high) == (decided, None, None)
    assert judgement.reason.startswith(reason)
    assert "in every seed; refuted if it is not in one of them" in judgement.rule
    assert "interval" not in judgement.rule + judgement.reason


def test_the_mean_of_runs_does_not_decide_a_claim_of_every_run():
    values = [1.12, 1.0, 1.0, 1.0, 1.0]  # an interval of 0.9574 to 1.091: the mean is below 1.1
    claim = Claim(text="c", quantity=cell("score", row="left"), at_most=1.1)
    assert judge(claim, measured(values, []), range(5)).verdict == "confirmed"


@pytest.mark.parametrize(
    "bounds", [{}, {"at_least": 2.0, "at_most": 1.0}, {"at_least": 0.0, "confidence": 1.0}]
)
def test_a_claim_without_a_usable_rule_is_refused(bounds: dict[str, float]):
    with pytest.raises(ValueError, match="the claim 'c'"):
        Claim(text="c", quantity=cell("score"), **bounds)


def test_a_claim_whose_verdict_depends_on_the_kernels_is_undecided():
    claim = Claim(text="c", quantity=cell("score", row="left"), at_least=0.5)
    above, higher, below = (
        judge(claim, measured([mean, mean + 0.01, mean - 0.01], []), range(3)) for mean in (0.6, 0.7, 0.4)
    )
    assert (above.verdict, higher.verdict, below.verdict) == ("confirmed", "confirmed", "refuted")
    assert across_kernels({"one processor": above}) == above
    assert across_kernels({"one processor": above, "another": higher}) == above
    torn = across_kernels({"one processor": above, "another": below})
    assert torn.verdict == "undecided"
    assert torn.reason == "it depends on the processor: confirmed with one processor; refuted with another"
    assert torn.per_seed == above.per_seed
