"""`make bench` and `make peers` find a `run` in every file, and judge a ratio by what is needed."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def main(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.__main__")


def test_every_benchmark_can_be_run(main):
    names = [*main.names(peers=False), *main.names(peers=True)]
    assert {"adapt", "merge", "transport", "translate", "scaling", "merge_peers"} <= set(names)
    for name in names:
        assert callable(importlib.import_module(f"benchmarks.{name}").run), name


def test_a_ratio_is_judged_by_what_is_needed(main):
    assert main.holds({"ratio": 3.0, "needed": ">= 2.5 (the paper)"}) == "yes"
    assert main.holds({"ratio": 1.0, "needed": "< 1"}) == "NO"
    assert main.holds({"ratio": None, "needed": None}) == ""
