"""The one runner of suites. What a suite's file needs is imported from here."""

from __future__ import annotations

from transship_suites.runner.context import Context, Experiment
from transship_suites.runner.declaration import (
    Condition,
    Curve,
    Heading,
    MeasuredBy,
    Need,
    Paper,
    PaperTable,
    Scale,
    Suite,
    load_suite,
    percent,
    printed,
    product,
    read_paper,
    read_toml,
    suite_names,
)
from transship_suites.runner.quantities import (
    Case,
    Level,
    Measurement,
    Options,
    Quantity,
    cell,
    highest,
    lowest,
)
from transship_suites.runner.results import SuiteResult
from transship_suites.runner.run import CaseDone, SuiteRun, run_suite
from transship_suites.runner.verdict import Claim, EveryRun, Judgement, SeedSpread, judge, spread

__all__ = [
    "Case",
    "CaseDone",
    "Claim",
    "Condition",
    "Context",
    "Curve",
    "EveryRun",
    "Experiment",
    "Heading",
    "Judgement",
    "Level",
    "MeasuredBy",
    "Measurement",
    "Need",
    "Options",
    "Paper",
    "PaperTable",
    "Quantity",
    "Scale",
    "SeedSpread",
    "Suite",
    "SuiteResult",
    "SuiteRun",
    "cell",
    "highest",
    "judge",
    "load_suite",
    "lowest",
    "percent",
    "printed",
    "product",
    "read_paper",
    "read_toml",
    "run_suite",
    "spread",
    "suite_names",
]
