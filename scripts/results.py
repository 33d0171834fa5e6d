"""Keep runs of suites, and write the results pages from them.

    python scripts/results.py docs/results               write the pages of all kept runs
    python scripts/results.py --keep RUN/results.json    keep a run that `transship bench` left behind
    python scripts/results.py --again theseus-text …     judge kept runs anew by today's declarations

Kept runs are `benchmarks/results/*.json`, without spaces, and without the factors and the seed that a
measurement shares with its case. A run whose file would still be larger than a megabyte is kept with its
measurements rounded to five significant digits and its seconds to tenths, and its tables and verdicts are
those of the rounded numbers. `--again` makes tables, curves and verdicts from a kept run's own cases, so that
a corrected claim or a figure of a paper reaches it without a new run; cases, seeds, options, fingerprint and
environment stay as they were.

A run on other kernels is kept beside the first one; a claim that it decides otherwise is undecided.

The pages are `index.md`, with every claim's verdict, and a page per run with its tables. Nothing on them is
typed by hand; a test fails while `docs/results` differs from what this script writes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from transship.atomic import write_text
from transship.report import markdown
from transship_suites.runner.declaration import load_suite
from transship_suites.runner.page import count_verdicts, seeds_text, suite_page
from transship_suites.runner.quantities import Measurement
from transship_suites.runner.results import CaseResult, SuiteResult, summarise
from transship_suites.runner.verdict import across_kernels

KEPT = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
LARGE, DIGITS = 1_000_000, 5
HEAD = f"""# Results

What the suites measured, run by `transship bench NAME`. A claim is judged by the rule printed with it on the
suite's own page, from the spread over seeds; nobody chose the word. Runs are kept in `benchmarks/results`;
one whose file would be larger than a megabyte is kept with measurements of {DIGITS} significant digits.
"""


def kept() -> list[tuple[Path, SuiteResult]]:
    """Return the kept files with their results, by suite and scale; the first run of each comes first."""
    files = [(file, SuiteResult.read(file)) for file in sorted(KEPT.glob("*.json"))]
    return sorted(files, key=lambda pair: (pair[1].suite, pair[1].scale, len(pair[0].name)))


def runs() -> list[SuiteResult]:
    """Return one result per suite and scale: the first run, with claims that runs on other kernels share."""
    groups: dict[tuple[str, str], list[SuiteResult]] = {}
    for _, run in kept():
        groups.setdefault((run.suite, run.scale), []).append(run)
    return [joined(group) for group in groups.values()]


def joined(group: list[SuiteResult]) -> SuiteResult:
    """Return the first of several runs of a table; claims that another decides otherwise are undecided."""
    by_claim = zip(*(run.claims for run in group), strict=True)
    claims = (
        across_kernels({kernels_of(run): claim for run, claim in zip(group, judgements, strict=True)})
        for judgements in by_claim
    )
    return dataclasses.replace(group[0], claims=tuple(claims))


def kernels_of(run: SuiteResult) -> str:
    """Return the processor and kernels that a run was measured on; early ones did not note them."""
    return run.environment.get("kernels", "a processor that was not noted")


def again(run: SuiteResult) -> SuiteResult:
    """Return the run's own cases with the tables, curves and verdicts that are declared today."""
    judged = summarise(
        load_suite(run.suite),
        run.scale,
        run.seeds,
        run.cases,
        fingerprint=run.fingerprint,
        environment=run.environment,
    )
    return dataclasses.replace(judged, options=run.options)


def rounded(run: SuiteResult) -> SuiteResult:
    """Return the run with measurements of five significant digits, and what they give."""
    cases = tuple(
        CaseResult(
            case.case, tuple(map(_rounded, case.measurements)), case.attachments, round(case.seconds, 1)
        )
        for case in run.cases
    )
    return again(dataclasses.replace(run, cases=cases))


def dumps(run: SuiteResult) -> str:
    """Return the text of a kept file: JSON that says nothing twice; `SuiteResult.read` gives the run back."""
    value = run.to_json()
    for result in value["cases"]:
        case = result["case"]
        result["measurements"] = [_beyond_case(measured, case) for measured in result["measurements"]]
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def write(run: SuiteResult) -> Path:
    """Write a run to where runs are kept: in place of the earlier one on the same kernels, or beside it."""
    own = [file for file, other in kept() if (other.suite, other.scale) == (run.suite, run.scale)]
    same = [file for file in own if kernels_of(SuiteResult.read(file)) == kernels_of(run)]
    suffix = f"-{hashlib.sha256(kernels_of(run).encode()).hexdigest()[:8]}" if own else ""
    file = same[0] if same else KEPT / f"{run.suite}-{run.scale}{suffix}.json"
    return write_text(file, dumps(run), force=True)


def keep(file: Path) -> Path:
    """Keep a run of `transship bench`, rounded if it is large."""
    run = again(SuiteResult.read(file))
    return write(run if len(dumps(run)) <= LARGE else rounded(run))


def page_name(run: SuiteResult) -> str:
    """Return the file name of a run's page."""
    return f"{run.suite}-{run.scale}.md"


def index(results: list[SuiteResult]) -> str:
    """Return the page that lists all claims of all kept runs."""
    parts = [HEAD]
    for run in results:
        rows = [f"| {_cell(claim.text)} | {claim.verdict} | {_cell(claim.reason)} |" for claim in run.claims]
        parts.append(
            f"## {run.suite}\n\n{run.title}. {seeds_text(run)} {count_verdicts(run.claims)} "
            f"[Tables]({page_name(run)}).\n\n| claim | verdict | measured |\n|---|---|---|\n"
            + "\n".join([*rows, ""])
        )
    return "\n".join(parts)


def write_pages(out: Path) -> None:
    """Write all pages into `out`, and remove the page of a run that is no longer kept."""
    out.mkdir(parents=True, exist_ok=True)
    results = runs()
    pages = {"index.md": index(results)}
    pages |= {page_name(run): markdown.render(suite_page(load_suite(run.suite), run)) for run in results}
    for name, text in pages.items():
        (out / name).write_text(text, encoding="utf-8")
    for stale in {file.name for file in out.glob("*.md")} - set(pages):
        (out / stale).unlink()


def main() -> None:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="where the pages go")
    parser.add_argument("--keep", nargs="+", type=Path, default=[], metavar="FILE", help="runs to keep")
    parser.add_argument("--again", nargs="+", default=[], metavar="SUITE", help="kept runs to judge anew")
    given = parser.parse_args()
    if unknown := set(given.again) - {run.suite for run in runs()}:
        parser.error(f"no run is kept of {', '.join(sorted(unknown))}")
    written = [keep(file) for file in given.keep]
    written += [write(again(run)) for _, run in kept() if run.suite in given.again]
    for file in written:
        print(file)
    if given.out is not None:
        write_pages(given.out)
    elif not written:
        parser.error("nothing to do")


def _rounded(measured: Measurement) -> Measurement:
    shorter = {
        name: None if value is None else float(f"{value:.{DIGITS}g}")
        for name, value in measured.metrics.items()
    }
    return Measurement(measured.factors, shorter, measured.seed)


def _beyond_case(measured: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Return a measurement without what its case says already."""
    shared = case["factors"].items()
    own = {name: level for name, level in measured["factors"].items() if (name, level) not in shared}
    seed = {} if measured["seed"] == case["seed"] else {"seed": measured["seed"]}
    return {"factors": own, "metrics": measured["metrics"], **seed}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
