"""Claims whose sentence was once not what their quantity said."""

from __future__ import annotations

from typing import Any

import pytest

from transship_suites import load_suite
from transship_suites.embedding_migration import EveryPair
from transship_suites.otmf.names import OWN, PAPER
from transship_suites.runner import Claim, Measurement, cell
from transship_suites.runner.verdict import judge

SEEDS = (0, 1, 2)


def _claim(suite: str, words: str) -> Claim:
    (result,) = [claim for claim in load_suite(suite).claims if words in claim.text]
    return result


def _same(factors: dict[str, Any], metric: str, value: float | None) -> list[Measurement]:
    return [Measurement(factors, {metric: value}, seed) for seed in SEEDS]


@pytest.mark.parametrize(("far", "verdict"), [(0.0, "confirmed"), (0.2, "refuted")])
def test_deviations_at_two_scales_do_not_cancel(far: float, verdict: str):
    """0.2 above at α = 1 and 0.2 below at α = 100 average to nothing."""
    off = {1.0: far, 100.0: -far}
    measured = _same({"part": "scale", "method": "not rescaled"}, "accuracy", 0.8)
    for alpha in (0.1, 1.0, 5.0, 10.0, 20.0, 100.0):
        where = {"part": "scale", "layer": 6, "alpha": alpha}
        measured += _same(where, "accuracy", 0.1 if alpha < 1 else 0.8 + off.get(alpha, 0.0))
    claim = _claim("irp-stitch", "scale of the last layer")
    assert judge(claim, measured, SEEDS).verdict == verdict


@pytest.mark.parametrize(("second", "verdict"), [(0.71, "confirmed"), (0.69, "refuted")])
def test_both_backbones_must_be_above(second: float, verdict: str):
    measured = []
    for backbone, otmf in (("ViT-B/32", 0.9), ("ViT-L/14", second)):
        common = {"part": "continual", "tasks": 8, "backbone": backbone}
        measured += _same({**common, "method": "OTMF", "heads": PAPER}, "accuracy", otmf)
        for name in ("average", "task arithmetic", "TIES", "TSV-M", "OPCM"):
            measured += _same({**common, "method": name, "heads": OWN}, "accuracy", 0.7)
    claim = _claim("otmf-clip", "on each backbone")
    assert judge(claim, measured, SEEDS).verdict == verdict


@pytest.mark.parametrize("best", ["average", "task arithmetic", "TIES", "OPCM"])
def test_every_rival_that_is_named_counts(best: str):
    rivals = ("average", "task arithmetic", "TIES", "OPCM")
    measured = _same({"method": "OTMF"}, "score", 0.8)
    for name in rivals:
        measured += _same({"method": name}, "score", 0.9 if name == best else 0.7)
    claim = _claim("otmf-flan-t5", "mean of the tasks")
    assert judge(claim, measured, SEEDS).verdict == "refuted"
    assert best.replace("average", "averaging") in claim.text


def _pair(target: str, values: tuple[float | None, ...], **factors: str) -> list[Measurement]:
    where = {"source": "old", "target": target, **factors}
    return [Measurement(where, {"recall": value}, seed) for seed, value in zip(SEEDS, values, strict=False)]


@pytest.mark.parametrize("values", [(0.9, None, 0.9), (None, None, None), (0.9, 0.9)])
def test_a_pair_without_a_number_leaves_every_pair_undecided(values: tuple[float | None, ...]):
    measured = [*_pair("a", (0.95, 0.96, 0.95)), *_pair("b", values)]
    claim = Claim(text="Each pair finds 0.9.", quantity=EveryPair(cell("recall")), at_least=0.9)
    assert judge(claim, measured, SEEDS).verdict == "undecided"


def test_the_least_of_the_pairs_is_taken_seed_by_seed_and_others_do_not_count():
    measured = [*_pair("a", (0.5, 0.8, 0.7)), *_pair("b", (0.6, 0.7, 0.9))]
    measured += _pair("c", (0.1, 0.1, 0.1), method="never asked for here")
    wanted = [
        Measurement({**each.factors, "method": "ridge"}, each.metrics, each.seed) for each in measured[:6]
    ]
    quantity = cell("recall", method="ridge")
    assert EveryPair(quantity).per_seed([*wanted, *measured[6:]], SEEDS) == [0.5, 0.7, 0.7]
    assert EveryPair(quantity, greatest=True).per_seed(wanted, SEEDS) == [0.6, 0.8, 0.9]


def test_half_a_difference_is_a_pair_without_a_number():
    both = [*_pair("a", (0.9,) * 3, method="kernel"), *_pair("a", (0.8,) * 3, method="ridge")]
    quantity = EveryPair(cell("recall", method="kernel") - cell("recall", method="ridge"))
    assert quantity.per_seed([*both, *_pair("b", (0.8,) * 3, method="ridge")], SEEDS) == [None] * 3
