"""Write what the scaling benchmarks measured into the documentation: `python scripts/scaling.py docs`.

Reads `benchmarks/curves/*.json`, each what `python -m benchmarks NAME --json FILE` left behind, writes one
SVG per quantity that grows into `docs/scaling`, and the figures of `docs/scaling.md` between its marks: the
exponents, what a second process saves, and what follows for a billion vectors and for wide spaces. Nothing
between them is typed by hand; a test fails while they differ from what this writes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).resolve().parent.parent / "benchmarks" / "curves"
MARKS = ("<!-- {}: written by scripts/scaling.py -->", "<!-- end of {} -->")
COLOURS = ("#00897b", "#d81b60", "#3949ab", "#f57c00")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 520, 320, 64, 46, 16
SPAN_X, SPAN_Y = WIDTH - LEFT - 150, HEIGHT - BOTTOM - TOP


def rows() -> list[dict[str, Any]]:
    """Return the rows of all kept runs."""
    entries: list[dict[str, Any]] = []
    for file in sorted(KEPT.glob("*.json")):
        for table in json.loads(file.read_text(encoding="utf-8")).values():
            entries += table
    return entries


def picture(curves: list[dict[str, Any]], what: str, clock: str) -> str:
    """Return seconds over size, both logarithmic, one line per curve.

    CPU seconds are net of start-up; wall seconds are what one waits, start-up and all.
    """
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
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{clock} s</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def growth(found: list[dict[str, Any]]) -> str:
    """Return the exponents of CPU seconds and their points as Markdown."""
    lines = ["| what grows | sizes | CPU seconds | peak anonymous MB | exponent |", "|---|---|---|---|---|"]
    for row in (each for each in found if _clock(each) == "CPU"):
        sizes = ", ".join(f"{point[row['x']]:,}" for point in row["points"])
        seconds = ", ".join(f"{point['cpu']:.2f}" for point in row["points"])
        peaks = ", ".join(f"{point['peak'] / 1e6:.0f}" for point in row["points"] if point["peak"])
        lines.append(f"| {row['curve']}, {row['x']} | {sizes} | {seconds} | {peaks} | {row['ours']:.2f} |")
    return "\n".join(lines)


def workers(found: list[dict[str, Any]]) -> str:
    """Return wall seconds of one process and of two as Markdown: their curves, then their ratios."""
    lines = []
    curves = [each for each in found if _clock(each) == "wall"]
    if curves:
        lines += ["| what grows, by how many | sizes | wall seconds | exponent |", "|---|---|---|---|"]
    for row in curves:
        sizes = ", ".join(f"{point[row['x']]:,}" for point in row["points"])
        seconds = ", ".join(f"{point['seconds']:.1f}" for point in row["points"])
        lines.append(f"| {row['curve']}, {row['x']} | {sizes} | {seconds} | {row['ours']:.2f} |")
    lines += [""] if curves else []
    lines += ["| two beside one, wall seconds | one | two | ratio | needed |", "|---|---|---|---|---|"]
    for row in (each for each in found if "peer" in each and "wall s" in each["name"]):
        name = row["name"].replace(", wall s", "")
        times = f"{row['peer']:.1f} | {row['ours']:.1f} | {row['ratio']:.2f}"
        lines.append(f"| {name} | {times} | {row.get('needed') or ''} |")
    return "\n".join(lines)


def billion(found: list[dict[str, Any]]) -> str:
    """Return what 10⁹ rows would take at the rates that were measured at the largest size."""
    rates, hours = [], []
    for kind in ("ridge", "kernel"):
        row = _curve(found, f"translate apply, {kind}", "rows")
        last = row["points"][-1]
        rates.append(last["rows"] / (last["cpu"] - row["start"]))
        hours.append(1e9 / rates[-1] / 3600)
    spread = [3600 * hour / 64 for hour in hours]
    flows = [1e9 * 4 * (384 + 768) / each / 1e9 for each in spread]
    return (
        "Measured here (one core, one thread, whole command without start-up, Parquet to Parquet on a local "
        f"disk): {_round(rates[0])} rows per\nCPU second with a linear map, {_round(rates[1])} with the "
        f"kernel map. A billion rows then take {hours[0]:.1f} and {hours[1]:.1f} core-hours; 64\nworkers "
        f"{spread[0] / 60:.0f} and {spread[1] / 60:.0f} minutes, if the storage gives and takes 1.5 and "
        f"3.1 TB in that time: {flows[0]:.0f} GB/s for the linear map,\n{flows[1]:.0f} GB/s for the kernel "
        "map."
    )


def wide(found: list[dict[str, Any]]) -> str:
    """Return what maps between spaces as wide as a 70B model's would take, by the cube of the width."""
    row = _curve(found, "Procrustes map of a site", "width")
    first, last = row["points"][0]["width"], row["points"][-1]
    stream, inner = ((width / last["width"]) ** 3 * last["cpu"] for width in (8192, 28672))
    block = 6 * stream + 3 * inner
    return (
        f"Measured here, a Procrustes map between two spaces {last['width']:,} wide took {last['cpu']:.2f} "
        f"CPU seconds of one core, and its time grew by\nthe power {row['ours']:.1f} from {first:,} to "
        f"{last['width']:,}. By the cube, from there: {stream / 60:.0f} minutes of a core at 8,192, "
        f"{inner / 3600:.1f} hours at 28,672,\n{block / 3600:.0f} hours per block, "
        f"{_round(80 * block / 3600)} core-hours in all."
    )


def pages(page: str) -> dict[str, str]:
    """Return the files to write, by their names in `docs`; `page` is `scaling.md` as it is."""
    result = rows()
    by_name: dict[str, str] = {}
    for clock in ("CPU", "wall"):
        curves = [row for row in result if _clock(row) == clock]
        for what in dict.fromkeys(row["x"] for row in curves):
            name = f"scaling/{what}.svg" if clock == "CPU" else f"scaling/workers-{what}.svg"
            by_name[name] = picture([row for row in curves if row["x"] == what], what, clock)
    shown = {"CPU": "", "wall": ""}
    for name in by_name:
        clock, what = ("wall" if "/workers-" in name else "CPU"), Path(name).stem.removeprefix("workers-")
        shown[clock] += f"\n![{clock} seconds over {what}]({name})"
    blocks = {
        "curves": f"{growth(result)}\n{shown['CPU']}",
        "workers": f"{workers(result)}\n{shown['wall']}".rstrip(),
        "billion": billion(result),
        "maps": wide(result),
    }
    for name, text in blocks.items():
        start, end = (mark.format(name) for mark in MARKS)
        before, _, rest = page.partition(start)
        page = f"{before}{start}\n\n{text}\n\n{end}{rest.partition(end)[2]}"
    return {"scaling.md": page, **by_name}


def main(docs: Path) -> None:
    """Write the pictures and the table."""
    (docs / "scaling").mkdir(parents=True, exist_ok=True)
    for name, text in pages((docs / "scaling.md").read_text(encoding="utf-8")).items():
        (docs / name).write_text(text, encoding="utf-8")


def _clock(row: dict[str, Any]) -> str:
    """Return what a curve's seconds are of; curves of workers are timed by the wall."""
    return ("wall" if "workers" in row else "CPU") if "points" in row else ""


def _curve(found: list[dict[str, Any]], name: str, what: str) -> dict[str, Any]:
    return next(
        each for each in found if _clock(each) == "CPU" and (each["curve"], each["x"]) == (name, what)
    )


def _points(curve: dict[str, Any], what: str) -> list[tuple[float, float]]:
    if _clock(curve) == "wall":
        return [(point[what], point["seconds"]) for point in curve["points"]]
    return [(point[what], max(1e-3, point["cpu"] - curve["start"])) for point in curve["points"]]


def _round(value: float) -> str:
    """Return a number with two significant digits, as people read it."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _x(value: float, values: list[float]) -> float:
    low, high = math.log(min(values)), math.log(max(values))
    return LEFT + SPAN_X * (math.log(value) - low) / (high - low)


def _y(value: float, values: list[float]) -> float:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return TOP + SPAN_Y * (1 - (math.log10(value) - low) / (high - low))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
