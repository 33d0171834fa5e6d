"""Write the table of speed from the kept figures: `python scripts/speed.py README.md`.

The figures are in `benchmarks/speed.json`, as `python -m benchmarks [NAME…] --json benchmarks/speed.json`
leaves them (rows of benchmarks that did not run stay as they are). The table stands between two comments of
the page; a test fails while the two differ.
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
    """Return the table of what has been measured."""
    lines = ["| what | ours | peer | |", "|---|---|---|---|"]
    for line in LINES:
        found = [row for row in figures.get(line.benchmark, []) if row["name"].startswith(line.row)]
        if found:
            ours, peer = float(found[0]["ours"]), float(found[0]["peer"])
            lines.append(
                f"| {line.what} (`{line.benchmark}`) | {_amount(ours)} {line.unit} "
                f"| {line.peer}: {_amount(peer)} {line.unit} | {_ratio(ours, peer)} |"
            )
    return "\n".join(lines)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ours: float, peer: float) -> str:
    return f"{peer / ours:.1f} × less" if peer > ours else f"{ours / peer:.2f} × as much"


def main(page: Path) -> None:
    """Put the table into the page."""
    text = page.read_text(encoding="utf-8")
    made = table(json.loads(KEPT.read_text(encoding="utf-8")))
    pattern = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"{page} has no place for the table: a line {BEGIN} and a line {END}")
    page.write_text(pattern.sub(lambda _: f"{BEGIN}\n{made}\n{END}", text), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
