"""The one runner of suites. What a suite's file needs is imported from here."""

from __future__ import annotations

from transship_suites.runner.context import Context
from transship_suites.runner.declaration import (
    Column,
    Curve,
    Need,
    Paper,
    Row,
    Scale,
    Suite,
    Table,
    product,
)
from transship_suites.runner.find import load_suite, suite_names
from transship_suites.runner.quantities import (
    Case,
    Measurement,
    Options,
    Quantity,
    cell,
    highest,
    lowest,
)
from transship_suites.runner.results import SuiteResult
from transship_suites.runner.run import Step, SuiteRun
from transship_suites.runner.schedule import run_suite
from transship_suites.runner.verdict import Claim, EveryRun, Judgement, Spread, judge, spread

__all__ = [
    "Case",
    "Claim",
    "Column",
    "Context",
    "Curve",
    "EveryRun",
    "Judgement",
    "Measurement",
    "Need",
    "Options",
    "Paper",
    "Quantity",
    "Row",
    "Scale",
    "Spread",
    "Step",
    "Suite",
    "SuiteResult",
    "SuiteRun",
    "Table",
    "cell",
    "highest",
    "judge",
    "load_suite",
    "lowest",
    "product",
    "run_suite",
    "spread",
    "suite_names",
]
