"""Draw the curves of the scaling benchmarks: `python scripts/scaling.py docs`.

Reads `benchmarks/curves/*.json`, each what `python -m benchmarks NAME --json FILE` left behind, writes one
SVG per quantity that grows into `docs/scaling`, and the table of exponents into `docs/scaling.md`, between
its two marks. Nothing in them is typed by hand; a test fails while they differ from what this writes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).resolve().parent.parent / "benchmarks" / "curves"
MARKS = ("<!-- curves: written by scripts/scaling.py -->", "<!-- end of curves -->")
COLOURS = ("#00897b", "#d81b60", "#3949ab", "#f57c00")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 520, 320, 64, 46, 16
SPAN_X, SPAN_Y = WIDTH - LEFT - 150, HEIGHT - BOTTOM - TOP


def rows() -> list[dict[str, Any]]:
    """Return the rows of all kept runs."""
    found: list[dict[str, Any]] = []
    for file in sorted(KEPT.glob("*.json")):
        for table in json.loads(file.read_text(encoding="utf-8")).values():
            found += table
    return found


def picture(curves: list[dict[str, Any]], what: str) -> str:
    """Return CPU seconds (net of start-up) over size, both logarithmic, one line per curve."""
    lines = [(curve["curve"], _points(curve, what)) for curve in curves]
    xs, ys = ([point[axis] for _, points in lines for point in points] for axis in (0, 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for value in sorted(set(xs)):
        x = _x(value, xs)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + SPAN_Y}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + SPAN_Y + 16}" text-anchor="middle">{value:,}</text>')
    for power in range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))) + 1):
        y = _y(10.0**power, ys)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + SPAN_X}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for number, (name, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{_x(x, xs):.1f},{_y(y, ys):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{_x(x, xs):.1f}" cy="{_y(y, ys):.1f}" r="3" fill="{colour}"/>' for x, y in points
        ]
        last = points[-1]
        parts.append(
            f'<text x="{_x(last[0], xs) + 8:.1f}" y="{_y(last[1], ys) + 4:.1f}" fill="{colour}">{name}</text>'
        )
    parts.append(f'<text x="{LEFT + SPAN_X / 2}" y="{HEIGHT - 8}" text-anchor="middle">{what}</text>')
    middle = TOP + SPAN_Y / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">CPU s</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def table(found: list[dict[str, Any]]) -> str:
    """Return the exponents and the points as Markdown."""
    lines = ["| what grows | sizes | CPU seconds | peak anonymous MB | exponent |", "|---|---|---|---|---|"]
    for row in (one for one in found if "points" in one):
        sizes = ", ".join(f"{point[row['x']]:,}" for point in row["points"])
        seconds = ", ".join(f"{point['cpu']:.2f}" for point in row["points"])
        peaks = ", ".join(f"{point['peak'] / 1e6:.0f}" for point in row["points"] if point["peak"])
        lines.append(f"| {row['curve']}, {row['x']} | {sizes} | {seconds} | {peaks} | {row['ours']:.2f} |")
    return "\n".join([*lines, ""])


def pages(page: str) -> dict[str, str]:
    """Return the files to write, by their names in `docs`; `page` is `scaling.md` as it is."""
    found = rows()
    curves = [row for row in found if "points" in row]
    before, _, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    made = {"scaling.md": f"{before}{MARKS[0]}\n\n{table(found)}\n{MARKS[1]}{after}"}
    for what in dict.fromkeys(row["x"] for row in curves):
        made[f"scaling/{what}.svg"] = picture([row for row in curves if row["x"] == what], what)
    return made


def main(docs: Path) -> None:
    """Write the pictures and the table."""
    (docs / "scaling").mkdir(parents=True, exist_ok=True)
    for name, text in pages((docs / "scaling.md").read_text(encoding="utf-8")).items():
        (docs / name).write_text(text, encoding="utf-8")


def _points(curve: dict[str, Any], what: str) -> list[tuple[float, float]]:
    return [(point[what], max(1e-3, point["cpu"] - curve["start"])) for point in curve["points"]]


def _x(value: float, values: list[float]) -> float:
    low, high = math.log(min(values)), math.log(max(values))
    return LEFT + SPAN_X * (math.log(value) - low) / (high - low)


def _y(value: float, values: list[float]) -> float:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return TOP + SPAN_Y * (1 - (math.log10(value) - low) / (high - low))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
