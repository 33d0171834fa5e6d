"""Variants without a claim take fewer seeds; the rows that claims are made of take all of them."""

from __future__ import annotations

from typing import Any

import pytest

from transship.suites import recraft_series
from transship.suites.cross_modal.series import METHODS, UNCLAIMED
from transship.suites.runner import Case, Context, Measurement, load_suite
from transship.suites.runner.cache import Cache


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Return a function that says which seeds of a part reach the measurement."""
    monkeypatch.setattr(
        recraft_series, "measured", lambda *a, **k: iter([Measurement({"method": "x"}, {"accuracy": 1.0})])
    )
    suite, options = load_suite("recraft-series"), load_suite("recraft-series").scales["full"].options

    def found(variant: str, task: str, part: str, backbone: str = "minilm-l6") -> list[int]:
        case = {"variant": variant, "task": task, "backbone": backbone, "part": part}
        return [
            seed
            for seed in range(5)
            if list(
                suite.run(Case(case, seed), Context(suite.name, Case(case, seed), options, Cache(tmp_path)))
            )
        ]

    return found


def test_every_row_of_a_claim_has_five_seeds(seeds: Any):
    for part in METHODS:
        assert seeds("low", "waves", part) == ([0, 1, 2] if part in UNCLAIMED else [0, 1, 2, 3, 4])
    assert seeds("low", "waves", "raw", "none") == [0, 1, 2, 3, 4]


def test_a_variant_may_have_fewer_seeds_than_the_suite(seeds: Any):
    assert seeds("fields", "burgers", "nft") == [0, 1]
    assert seeds("second", "waves", "recraft", "granite-small") == [0]
