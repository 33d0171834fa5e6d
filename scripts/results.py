"""Write the results pages from the suites' own files: `python scripts/results.py docs/results`.

Reads `benchmarks/results/*.json`, each what one `transship bench` run left behind, and writes `index.md` with
every claim's verdict and a page per run with its tables. Nothing on these pages is typed by hand; a test
fails while `docs/results` differs from what this script writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transship.suites.runner.find import load_suite
from transship.suites.runner.page import count_verdicts, seeds_text, suite_page
from transship.suites.runner.results import SuiteResult

KEPT = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
HEAD = """# Results

What the suites measured, run by `transship bench NAME`. A claim is judged by the rule printed with it on the
suite's own page, from the spread over seeds; nobody chose the word.
"""


def runs() -> list[SuiteResult]:
    """Return the kept results, by suite and scale."""
    return sorted(
        (SuiteResult.read(file) for file in KEPT.glob("*.json")), key=lambda run: (run.suite, run.scale)
    )


def page_name(run: SuiteResult) -> str:
    """Return the file name of a run's page."""
    return f"{run.suite}-{run.scale}.md"


def index(found: list[SuiteResult]) -> str:
    """Return the page that lists all claims of all kept runs."""
    parts = [HEAD]
    for run in found:
        rows = [f"| {_cell(claim.text)} | {claim.verdict} | {_cell(claim.reason)} |" for claim in run.claims]
        parts.append(
            f"## {run.suite}\n\n{run.title}. {seeds_text(run)} {count_verdicts(run.claims)} "
            f"[Tables]({page_name(run)}).\n\n| claim | verdict | measured |\n|---|---|---|\n"
            + "\n".join([*rows, ""])
        )
    return "\n".join(parts)


def main(out: Path) -> None:
    """Write all pages into `out`, and remove the page of a run that is no longer kept."""
    out.mkdir(parents=True, exist_ok=True)
    found = runs()
    pages = {"index.md": index(found)}
    pages |= {page_name(run): suite_page(load_suite(run.suite), run).to_markdown() for run in found}
    for name, text in pages.items():
        (out / name).write_text(text, encoding="utf-8")
    for stale in {file.name for file in out.glob("*.md")} - set(pages):
        (out / stale).unlink()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
