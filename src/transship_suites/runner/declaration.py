"""The words in which a suite is declared, and how suites are found: a file is a suite, under its own name.

Importing this is cheap: no numpy, no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import itertools
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

from transship.errors import OptionError
from transship.registry import unknown
from transship_suites.runner.context import Context
from transship_suites.runner.quantities import (
    Case,
    Factors,
    Level,
    Measurement,
    MetricMean,
    Metrics,
    Options,
    Quantity,
)
from transship_suites.runner.verdict import Claim

HOME = Path(__file__).parent.parent
Measured = Metrics | Iterable[Measurement]


@dataclass(frozen=True)
class Paper:
    """Where the table stands that a suite re-runs.

    Attributes:
        title: of the paper.
        authors: as it names them.
        where: which tables and figures.
        link: to it.
        notes: what has to be known beside its figures: where it contradicts itself, or cannot be right.
    """

    title: str
    authors: str
    where: str = ""
    link: str = ""
    notes: tuple[str, ...] = ()

    def at(self, where: str) -> Paper:
        """Return the paper with the tables and figures that a suite re-runs."""
        return dataclasses.replace(self, where=where)

    def __str__(self) -> str:
        return ", ".join(part for part in (self.authors, f"“{self.title}”", self.where) if part)


@dataclass(frozen=True)
class Need:
    """A data set, a model, a library or a device that a suite cannot do without.

    Attributes:
        kind: data, model, library or gpu.
        name: as `transship.data.find_data` or `find_model` know it; a library's import name; a device.
        source: where it comes from and how to get it, in a few words.
        license: under which terms, where known.
    """

    kind: Literal["data", "model", "library", "gpu"]
    name: str
    source: str
    license: str = ""


@dataclass(frozen=True)
class MeasuredBy:
    """What measures a case, as `module:name`: imported when a case runs, so that declaring costs no torch."""

    name: str

    def __call__(self, case: Case, context: Context) -> Measured:
        measured: Measured = pkgutil.resolve_name(self.name)(case, context)
        return measured


@dataclass(frozen=True)
class Scale:
    """One size of a suite.

    Attributes:
        seeds: how many seeds; below two no claim can be decided.
        minutes: estimated, on two cores.
        options: sizes and counts that `cases` and `run` read.
        needs: what this scale needs beyond the suite's own needs; a function where options decide.
    """

    seeds: int
    minutes: float
    options: Options = field(default_factory=dict)
    needs: tuple[Need, ...] | Callable[[Options], Iterable[Need]] = ()


@dataclass(frozen=True)
class Condition:
    """A condition: the table's row or the curve's line with its name and the levels that select it."""

    name: str
    where: Mapping[str, Level] = field(default_factory=dict)


@dataclass(frozen=True)
class Heading:
    """What is shown of every row.

    Attributes:
        name: the heading.
        quantity: a metric's name or a quantity; the row's levels are added where it leaves them open.
        percent: shown times 100.
        digits: after the point.
    """

    name: str
    quantity: str | Quantity
    percent: bool = False
    digits: int = 3

    def within(self, row: Condition) -> Quantity:
        """Return what the cell of `row` shows."""
        quantity = MetricMean(self.quantity) if isinstance(self.quantity, str) else self.quantity
        return quantity.within(row.where)


@dataclass(frozen=True)
class PaperTable:
    """Rows × columns, with the paper's own figures where it has them.

    Attributes:
        title: above the table.
        rows: its conditions.
        columns: its quantities.
        paper: (row name, column name) → the figure as the paper prints it, in the shown unit.
        paper_source: which table or figure of the paper.
        setting: how our setting differs from the paper's; required beside the paper's figures.
    """

    title: str
    rows: tuple[Condition, ...]
    columns: tuple[Heading, ...]
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)
    paper_source: str = ""
    setting: str = ""

    def __post_init__(self) -> None:
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        _unique(rows, f"rows of '{self.title}'")
        _unique(columns, f"columns of '{self.title}'")
        astray = [key for key in self.paper if key[0] not in rows or key[1] not in columns]
        if astray:
            raise ValueError(f"the paper's figures {astray} have no cell in '{self.title}'")
        if self.paper and not (self.setting and self.paper_source):
            raise ValueError(f"'{self.title}' prints a paper's figures without their source and setting")


@dataclass(frozen=True)
class Curve:
    """A quantity against a factor, one line per row.

    Attributes:
        title: above the figure.
        x: the factor along the horizontal axis; its levels are read from the measurements.
        quantity: a metric's name or a quantity, as of a column.
        lines: the rows drawn.
        x_title: the axis' name with its unit.
        y_title: likewise.
        log_x: a logarithmic axis.
    """

    title: str
    x: str
    quantity: str | Quantity
    lines: tuple[Condition, ...]
    x_title: str
    y_title: str
    log_x: bool = False


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One paper's table (or several that share their runs) as a declaration.

    Attributes:
        title: one line.
        summary: a paragraph: what is done, on what.
        paper: whose table it is.
        claims: what the measurements shall confirm or refute.
        scales: `quick` and `full`, or `paper` alone, the paper's own setting.
        cases: from a scale's options to the factors of the cases; the runner adds the seeds.
        run: from a case and its context to metrics, or to several measurements whose factors are added to the
            case's; a function of this file, or `MeasuredBy` one of another.
        tables: what is shown of it.
        curves: likewise.
        figures: makes further figures (blocks of `transship.report`) from the `SuiteResult`.
        needs: data, models and libraries.
        version: raise it to forget finished cases when something changed that the sources do not show.
        name: the file's name, filled in by `load_suite`.
        file: the file, filled in by `load_suite`.
    """

    title: str
    summary: str
    paper: Paper
    claims: tuple[Claim, ...]
    scales: Mapping[str, Scale]
    cases: Callable[[Options], Iterable[Factors]]
    run: Callable[[Case, Context], Measured]
    tables: tuple[PaperTable, ...]
    curves: tuple[Curve, ...] = ()
    figures: Callable[[Any], Sequence[Any]] | None = None
    needs: tuple[Need, ...] = ()
    version: int = 1
    name: str = ""
    file: Path | None = None

    def __post_init__(self) -> None:
        if not {"quick", "full"} <= set(self.scales) and set(self.scales) != {"paper"}:
            raise ValueError(f"the suite '{self.title}' declares no quick or no full scale")
        if not self.claims or not self.tables:
            raise ValueError(f"the suite '{self.title}' declares no claim or no table")
        _unique([claim.text for claim in self.claims], f"claims of '{self.title}'")
        _unique([table.title for table in self.tables], f"tables of '{self.title}'")
        if any(scale.seeds < 1 for scale in self.scales.values()):
            raise ValueError(f"the suite '{self.title}' has a scale without seeds")

    def needs_at(self, scale: str) -> tuple[Need, ...]:
        """Return everything that `scale` needs."""
        chosen = self.scales[scale]
        more = chosen.needs(chosen.options) if callable(chosen.needs) else chosen.needs
        return (*self.needs, *more)

    def with_options(self, scale: str, changes: Options) -> Suite:
        """Return the suite with some options of a scale changed; an option that it has not is refused."""
        chosen = self.scales[scale]
        for name in changes:
            if name not in chosen.options:
                raise unknown(name, chosen.options, kind="option", where=f"{self.name} --scale {scale}")
        changed = dataclasses.replace(chosen, options={**chosen.options, **changes})
        return dataclasses.replace(self, scales={**self.scales, scale: changed})


def read_toml(file: Path) -> dict[str, Any]:
    """Return what a file of data says: a paper with its printed figures, names and prompts of materials."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def read_paper(file: Path, where: str = "") -> tuple[Paper, dict[str, Any]]:
    """Return a paper and all that its file says of it, its printed figures among that."""
    about = read_toml(file)
    return Paper(about["title"], about["authors"], where, notes=tuple(about["notes"])), about


def printed(rows: Mapping[str, Sequence[float]], columns: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return a paper's printed rows by (row, column), as `Table.paper` holds them."""
    return {
        (row, column): value
        for row, values in rows.items()
        for column, value in zip(columns, values, strict=True)
    }


def percent(name: str, quantity: str | Quantity, digits: int = 1) -> Heading:
    """Return a column of shares that is shown as per cent."""
    return Heading(name, quantity, percent=True, digits=digits)


def product(**levels: Sequence[Level]) -> list[dict[str, Level]]:
    """Return every combination of the factors' levels: the cases of a full grid."""
    return [
        dict(zip(levels, combination, strict=True)) for combination in itertools.product(*levels.values())
    ]


def _unique(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two {what} have the same name")


def suite_names(folder: Path | None = None) -> tuple[str, ...]:
    """Return the names of the suites in `folder` (ours by default), sorted, without importing any."""
    files = (folder or HOME).glob("[a-z]*.py")
    return tuple(sorted(file.stem.replace("_", "-") for file in files))


def load_suite(name: str, folder: Path | None = None) -> Suite:
    """Import the file of the suite `name` and return what it declares as `suite`."""
    known = suite_names(folder)
    if name not in known:
        raise unknown(name, known, kind="suite", where="bench")
    file = (folder or HOME) / f"{name.replace('-', '_')}.py"
    declared = getattr(_import(file, ours=folder is None or folder == HOME), "suite", None)
    if not isinstance(declared, Suite):
        raise OptionError(
            "the file declares no suite", where=str(file), fix="write `suite = Suite(…)` at its top level"
        )
    return dataclasses.replace(declared, name=name, file=file)


class _FromSource(SourceFileLoader):
    """Runs the text that is fingerprinted: cached bytecode may be that of an edit in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the file's code, compiled anew."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _import(file: Path, *, ours: bool) -> ModuleType:
    if ours:
        return importlib.import_module(f"transship_suites.{file.stem}")
    # a name of its own per folder, so that two folders may have a suite of the same name
    home = hashlib.sha256(str(file.resolve().parent).encode()).hexdigest()[:12]
    name = f"transship_suite_{home}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_FromSource(name, str(file)))
    assert spec is not None, "a .py file always has a loader"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[spec.name]
        raise
    return module
