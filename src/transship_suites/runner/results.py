"""What a run leaves behind: numbers, tables and verdicts, as one JSON file with a schema."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from transship.errors import DataError
from transship_suites.runner.declaration import Condition, Curve, Heading, PaperTable, Suite
from transship_suites.runner.quantities import Case, Measurement, Quantity
from transship_suites.runner.verdict import Judgement, SeedSpread, Verdict, judge, spread

SCHEMA = 1
SKIPPED = "skipped"  # the attachment that says why a case measured nothing, such as a library that is missing
_PAST = ("schema", "code", "planned")  # keys of files that no field holds
_FIX = "run the suite again with this version of transship"


@dataclass(frozen=True)
class CaseResult:
    """What one case measured, and how long it took."""

    case: Case
    measurements: tuple[Measurement, ...]
    attachments: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class TableResult:
    """A table's numbers: `cells[row][column]` over seeds, and the paper's own `paper[row][column]`.

    Numbers are in the unit they are shown in; `digits` per column.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    digits: tuple[int, ...]
    percent: tuple[bool, ...]
    cells: tuple[tuple[SeedSpread, ...], ...]
    paper: tuple[tuple[float | None, ...], ...]
    paper_source: str
    setting: str


@dataclass(frozen=True)
class CurveResult:
    """A curve's numbers: `points[line][x]` is the spread over seeds."""

    title: str
    lines: tuple[str, ...]
    x: tuple[float | str, ...]
    points: tuple[tuple[SeedSpread, ...], ...]
    x_title: str
    y_title: str
    log_x: bool


@dataclass(frozen=True)
class SuiteResult:
    """Everything that a finished run of a suite says.

    Attributes:
        suite: its name.
        title: its title.
        summary: its paragraph.
        paper: the paper it re-runs.
        scale: quick, full or paper.
        seeds: the seeds.
        options: of the scale.
        needs: the data, models and libraries it used, with their sources.
        fingerprint: hash of the declaration and of the code it ran.
        environment: versions of what computed it.
        cases: what was measured.
        tables: means and spread.
        curves: likewise.
        claims: the verdicts.
        seconds: of all cases together, also those of an earlier, killed run.
    """

    suite: str
    title: str
    summary: str
    paper: str
    scale: str
    seeds: tuple[int, ...]
    options: dict[str, Any]
    needs: tuple[dict[str, str], ...]
    fingerprint: str
    environment: dict[str, str]
    cases: tuple[CaseResult, ...]
    tables: tuple[TableResult, ...]
    curves: tuple[CurveResult, ...]
    claims: tuple[Judgement, ...]
    seconds: float

    def count(self, attachment: str) -> int:
        return sum(attachment in case.attachments for case in self.cases)

    @property
    def measurements(self) -> list[Measurement]:
        return [measurement for case in self.cases for measurement in case.measurements]

    def per_seed(self, quantity: Quantity) -> list[float | None]:
        """Return one value of `quantity` per seed; what figures of a suite's own are drawn from."""
        return quantity.per_seed(self.measurements, self.seeds)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values; `from_json` gives it back."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    def dumps(self) -> str:
        """Return the result as the text of a JSON file."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, value: Any, *, where: str = "result") -> SuiteResult:
        """Return the result that `to_json` wrote; refuse anything else."""
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            schema = value.get("schema") if isinstance(value, dict) else None
            raise DataError(
                f"it is no suite result of schema {SCHEMA} (found {schema})", where=where, fix=_FIX
            )
        try:
            return _result({key: part for key, part in value.items() if key not in _PAST})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"the suite result is damaged ({error!r})", where=where, fix=_FIX) from error

    @classmethod
    def read(cls, path: Path) -> SuiteResult:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"it is no JSON ({error})", where=str(path), fix=_FIX) from error
        return cls.from_json(value, where=str(path))


def table_result(table: PaperTable, measurements: Sequence[Measurement], seeds: Sequence[int]) -> TableResult:
    """Return the numbers of a declared table; rows that this scale did not measure at all are left out."""
    whole = [
        tuple(
            _scaled(column.within(row).per_seed(measurements, seeds), 100.0 if column.percent else 1.0)
            for column in table.columns
        )
        for row in table.rows
    ]
    measured = [place for place, cells in enumerate(whole) if any(cell.seeds for cell in cells)]
    kept = measured or range(len(whole))
    rows, cells = [table.rows[place] for place in kept], tuple(whole[place] for place in kept)
    paper = tuple(tuple(table.paper.get((row.name, column.name)) for column in table.columns) for row in rows)
    return TableResult(
        title=table.title,
        rows=tuple(row.name for row in rows),
        columns=tuple(column.name for column in table.columns),
        digits=tuple(column.digits for column in table.columns),
        percent=tuple(column.percent for column in table.columns),
        cells=cells,
        paper=paper,
        paper_source=table.paper_source,
        setting=table.setting,
    )


def curve_result(curve: Curve, measurements: Sequence[Measurement], seeds: Sequence[int]) -> CurveResult:
    """Return the numbers of a declared curve, at every level of its factor that was measured."""
    factors = [measurement.factors for measurement in measurements]
    levels = {own[curve.x] for own in factors if curve.x in own}
    x = tuple(sorted(levels, key=lambda level: (isinstance(level, str), level)))
    column = Heading(curve.title, curve.quantity)
    points = tuple(
        tuple(
            spread(
                column.within(Condition(line.name, {**line.where, curve.x: level})).per_seed(
                    measurements, seeds
                )
            )
            for level in x
        )
        for line in curve.lines
    )
    names = tuple(line.name for line in curve.lines)
    return CurveResult(curve.title, names, x, points, curve.x_title, curve.y_title, curve.log_x)


def summarise(
    suite: Suite,
    scale: str,
    seeds: Sequence[int],
    cases: Sequence[CaseResult],
    *,
    fingerprint: str,
    environment: dict[str, str],
) -> SuiteResult:
    """Return the result: tables, curves and verdicts from what the cases measured.

    A table of which this scale measured nothing is left out.
    """
    measurements = [measurement for case in cases for measurement in case.measurements]
    tables = [table_result(table, measurements, seeds) for table in suite.tables]
    measured = [table for table in tables if any(cell.seeds for row in table.cells for cell in row)]
    return SuiteResult(
        suite=suite.name,
        title=suite.title,
        summary=suite.summary,
        paper=str(suite.paper),
        scale=scale,
        seeds=tuple(seeds),
        options=dict(suite.scales[scale].options),
        needs=tuple(dataclasses.asdict(need) for need in suite.needs_at(scale)),
        fingerprint=fingerprint,
        environment=environment,
        cases=tuple(cases),
        tables=tuple(measured or tables),
        curves=tuple(curve_result(curve, measurements, seeds) for curve in suite.curves),
        claims=tuple(judge(claim, measurements, seeds) for claim in suite.claims),
        seconds=sum(case.seconds for case in cases),
    )


def case_from_json(value: dict[str, Any]) -> CaseResult:
    """Return the case result that `dataclasses.asdict` made.

    A measurement has the factors and the seed of its case; a file may leave out what it shares with it.
    """
    case = Case(**value["case"])
    measurements = tuple(
        Measurement({**case.factors, **own["factors"]}, own["metrics"], own.get("seed", case.seed))
        for own in value["measurements"]
    )
    return CaseResult(case, measurements, dict(value["attachments"]), float(value["seconds"]))


def _scaled(values: Sequence[float | None], factor: float) -> SeedSpread:
    return spread([None if value is None else factor * value for value in values])


def _result(value: dict[str, Any]) -> SuiteResult:
    return SuiteResult(
        **{
            **value,
            "seeds": tuple(value["seeds"]),
            "needs": tuple(value["needs"]),
            "cases": tuple(case_from_json(case) for case in value["cases"]),
            "tables": tuple(_table(table) for table in value["tables"]),
            "curves": tuple(_curve(curve) for curve in value["curves"]),
            "claims": tuple(_judgement(claim) for claim in value["claims"]),
        }
    )


def _spreads(rows: list[list[dict[str, Any]]]) -> tuple[tuple[SeedSpread, ...], ...]:
    return tuple(tuple(SeedSpread(**cell) for cell in row) for row in rows)


def _table(value: dict[str, Any]) -> TableResult:
    lists = {key: tuple(value[key]) for key in ("rows", "columns", "digits", "percent")}
    paper = tuple(tuple(row) for row in value["paper"])
    return TableResult(**{**value, **lists, "cells": _spreads(value["cells"]), "paper": paper})


def _curve(value: dict[str, Any]) -> CurveResult:
    lists = {key: tuple(value[key]) for key in ("lines", "x")}
    return CurveResult(**{**value, **lists, "points": _spreads(value["points"])})


def _judgement(value: dict[str, Any]) -> Judgement:
    if value["verdict"] not in get_args(Verdict):
        raise ValueError(f"verdict {value['verdict']}")
    return Judgement(
        **{**value, "per_seed": tuple(value["per_seed"]), "spread": SeedSpread(**value["spread"])}
    )
