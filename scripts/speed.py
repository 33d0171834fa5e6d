"""Write the table of speed from the kept figures: `python scripts/speed.py README.md`.

The figures are in `benchmarks/speed.json`, as `python -m benchmarks [NAME…] --json benchmarks/speed.json`
leaves them (rows of benchmarks that did not run stay as they are). The table stands between two comments of
the page; a test fails while the two differ. A benchmark that was never kept has rows that say so, and the
command that fills them is printed; a kept one without a row that the table shows is an error.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT = Path(__file__).resolve().parent.parent / "benchmarks" / "speed.json"
BEGIN, END = "<!-- speed: written by scripts/speed.py -->", "<!-- /speed -->"


@dataclass(frozen=True)
class Line:
    """A line of the table: which benchmark's row it shows, in which words."""

    benchmark: str
    row: str
    what: str
    peer: str
    unit: str = "CPU s"


LINES = (
    Line("merge", "linear, CPU s, mergekit / ours", "linear merge of three 0.25 GB checkpoints", "mergekit"),
    Line("merge", "ties, CPU s, mergekit / ours", "TIES merge of the same", "mergekit"),
    Line("merge", "ties, peak anonymous MB, mergekit / ours", "its peak memory", "mergekit", "MB"),
    Line("sinkhorn", "sinkhorn 1024×512", "Sinkhorn with gradient, 1024 points of width 512", "POT"),
    Line("translate", "Procrustes fit, CPU s", "Procrustes fit on 2,000 pairs", "latentis"),
    Line("translate", "ridge with λ", "ridge with its strength, 2,000 pairs", "latentis, affine by SGD"),
    Line("translate", "200,000 vectors", "translate 200,000 vectors, 768 → 1024", "the bare product"),
    Line(
        "collect",
        "collect / forward alone",
        "Moments of MiniLM-L6 → MPNet, 500 texts",
        "forward passes",
    ),
    Line("transport", "transport over forward passes", "transport ViT-B/16 → B/16+", "forward passes"),
    Line("transport", "plain way over transport", "the same transport", "float64, all tokens, an SVD each"),
)


def table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table; what has not been measured has a row that says so."""
    lines = ["| what | ours | peer | |", "|---|---|---|---|"]
    for line in LINES:
        what = f"| {line.what} (`{line.benchmark}`) |"
        if line.benchmark not in figures:
            lines.append(f"{what} not measured | {line.peer} | |")
            continue
        ours, peer = _measured(line, figures[line.benchmark])
        lines.append(
            f"{what} {_amount(ours)} {line.unit} | {line.peer}: {_amount(peer)} {line.unit} "
            f"| {_ratio(ours, peer)} |"
        )
    return "\n".join(lines)


def missing(figures: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the benchmarks that the table shows and nobody has kept."""
    return sorted({line.benchmark for line in LINES} - figures.keys())


def _measured(line: Line, rows: list[dict[str, Any]]) -> tuple[float, float]:
    for row in rows:
        if row["name"].startswith(line.row):
            return float(row["ours"]), float(row["peer"])
    sys.exit(
        f"{KEPT.name} has figures of '{line.benchmark}', but no row that begins with '{line.row}': run the "
        "benchmark again, or name its row as it is now"
    )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ours: float, peer: float) -> str:
    return f"{peer / ours:.1f} × less" if peer > ours else f"{ours / peer:.2f} × as much"


def main(page: Path) -> None:
    """Put the table into the page."""
    text = page.read_text(encoding="utf-8")
    figures = json.loads(KEPT.read_text(encoding="utf-8"))
    output = table(figures)
    pattern = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"{page} has no place for the table: a line {BEGIN} and a line {END}")
    page.write_text(pattern.sub(lambda _: f"{BEGIN}\n{output}\n{END}", text), encoding="utf-8")
    if absent := " ".join(missing(figures)):
        command = f"python -m benchmarks {absent} --json benchmarks/speed.json"
        print(
            f"not measured: {absent}; to fill the rows: {command} && python scripts/speed.py {page}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
