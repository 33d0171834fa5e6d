"""Run the benchmarks: `python -m benchmarks [NAME…]`, or `--peers` for those that check agreement with peers.

Each file has `run() -> list[dict]`: rows of a name, our figure, the peer's, their ratio and what is needed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import operator
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = ("name", "ours", "peer", "ratio", "needed", "holds")
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def holds(row: dict[str, Any]) -> str:
    """Say whether a row's ratio is what its `needed` (such as `>= 4`) asks for."""
    sign, _, bound = str(row.get("needed") or "").partition(" ")
    if sign not in COMPARE:
        return ""
    return "yes" if COMPARE[sign](float(row["ratio"]), float(bound.split()[0])) else "NO"


def names(peers: bool) -> list[str]:
    """Return the benchmarks of this folder."""
    files = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))
    return [name for name in files if name.endswith("_peers") == peers]


def show(value: Any) -> str:
    """Print numbers short and everything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str("" if value is None else value)


def main() -> None:
    """Run, print one table per file, and exit with 1 when a needed ratio was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", type=Path, help="also put the rows into this file")
    arguments = parser.parse_args()
    collected, missed = {}, 0
    for name in arguments.name or names(arguments.peers):
        started = time.perf_counter()
        rows = [row | {"holds": holds(row)} for row in importlib.import_module(f"benchmarks.{name}").run()]
        table = [COLUMNS, *([show(row.get(column)) for column in COLUMNS] for row in rows)]
        widths = [max(len(line[index]) for line in table) for index in range(len(COLUMNS))]
        print(f"\n{name} ({time.perf_counter() - started:.0f} s)")
        for line in table:
            print(
                "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            )
        sys.stdout.flush()
        collected[name] = rows
        missed += sum(row["holds"] == "NO" for row in rows)
    if arguments.json:
        kept = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.is_file() else {}
        whole = dict(sorted((kept | collected).items()))  # what did not run now stays as it was
        arguments.json.write_text(
            json.dumps(whole, indent=2, default=str, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    sys.exit(f"{missed} needed ratios were missed" if missed else 0)


if __name__ == "__main__":
    main()
