"""Several suites after one another: what is missing is said first, results are written as each one ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transship.atomic import write_text
from transship.errors import MissingError, OutputError, TransshipError
from transship.report import Page, html, markdown
from transship_suites.runner.declaration import Suite, load_suite, suite_names
from transship_suites.runner.needs import ensure, locate
from transship_suites.runner.page import joint_page, suite_page
from transship_suites.runner.results import SuiteResult
from transship_suites.runner.run import SuiteRun

RESULTS, MARKDOWN, PAGE = "results.json", "results.md", "report.html"


def card(suite: Suite) -> dict[str, Any]:
    """Return what is listed of a suite: claims with rules, times, and needs per scale with what is here."""
    return {
        "name": suite.name,
        "title": suite.title,
        "paper": str(suite.paper),
        "claims": [(claim.text, claim.rule) for claim in suite.claims],
        "minutes": {name: scale.minutes for name, scale in suite.scales.items()},
        "needs": {
            scale: [
                (need.kind, need.name, need.source, locate(need) is not None)
                for need in suite.needs_at(scale)
            ]
            for scale in suite.scales
        },
    }


def choose(names: Sequence[str], folder: Path | None = None) -> list[Suite]:
    """Return the suites named, each once, in the order given; `all` stands for every suite."""
    wanted = list(dict.fromkeys(names))
    if "all" in wanted:
        wanted = list(suite_names(folder))
    return [load_suite(name, folder) for name in wanted]


def prepare(
    suites: Sequence[Suite], scale: str, *, device: str | None = None, **options: Any
) -> list[SuiteRun]:
    """Return the runs, ready to start, or raise one error that names all that any of them is missing.

    `device` and `options` are those of `SuiteRun`.
    """
    if not suites:
        raise MissingError("no suite can run here", where="bench", fix="get what the lines above name")
    needs = [need for suite in suites if scale in suite.scales for need in suite.needs_at(scale)]
    ensure(needs, suite=", ".join(suite.name for suite in suites), device=device)
    return [SuiteRun(suite, scale, device=device, **options) for suite in suites]


def able(
    suites: Sequence[Suite], scale: str, *, device: str | None = None, missing: bool = False
) -> tuple[list[Suite], dict[str, str]]:
    """Return the suites that have a scale and can run here, and why each of the others cannot.

    With `missing`, suites that lack data or models count as well.
    """
    here, reasons = [], {}
    for suite in suites:
        if scale not in suite.scales:
            reasons[suite.name] = f"it has no scale '{scale}', only {', '.join(suite.scales)}"
            continue
        try:
            if not missing:
                ensure(suite.needs_at(scale), suite=suite.name, device=device)
        except TransshipError as error:
            reasons[suite.name] = error.what
        else:
            here.append(suite)
    return here, reasons


def check_output(run: SuiteRun, out: Path, *, force: bool = False) -> Path:
    """Return the folder of the run's results, or refuse it before any work: it may hold another result."""
    folder = out / run.suite.name / run.scale
    if force or not folder.exists():
        return folder
    for file in (folder / MARKDOWN, folder / PAGE, folder / RESULTS):
        if file.exists() and not _of_same_run(folder / RESULTS, run):
            raise OutputError(
                "it holds another result",
                where=str(file),
                fix="pass --force, or name another folder with --out",
            )
    return folder


def write_results(suite: Suite, result: SuiteResult, folder: Path) -> list[Path]:
    """Write JSON, Markdown and page into `folder`, each whole or not at all; the JSON last."""
    written = _write(suite_page(suite, result), folder)
    return [*written, write_text(folder / RESULTS, result.dumps(), force=True)]


def write_joint(suites: Sequence[Suite], results: Sequence[SuiteResult], out: Path) -> list[Path]:
    """Write one page of several suites, as HTML and as Markdown, into `out/all/<scale>`."""
    return _write(joint_page(suites, results), out / "all" / results[0].scale)


def _write(page: Page, folder: Path) -> list[Path]:
    return [
        write_text(folder / PAGE, html.render(page), force=True),
        write_text(folder / MARKDOWN, markdown.render(page), force=True),
    ]


def _of_same_run(file: Path, run: SuiteRun) -> bool:
    try:
        result = SuiteResult.read(file)
    except (OSError, TransshipError):
        return False
    return (result.suite, result.scale, result.seeds, result.fingerprint) == (
        run.suite.name,
        run.scale,
        run.seeds,
        run.fingerprint,
    )
