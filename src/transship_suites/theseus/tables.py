"""Tables of the suite on small vision transformers, with the paper's averages beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transship_suites.runner import Column, Row, Table

COLUMNS = (
    Column("accuracy", "accuracy", percent=True, digits=1),
    Column("share of the source's gain", "share", percent=True, digits=1),
    Column("clean accuracy", "clean", percent=True, digits=1),
    Column("strength", "strength", digits=2),
)
BOUND_ROWS = ("target zero-shot", "source fine-tuned", "target fine-tuned")
SETTING = (
    "the paper moves fine-tunes between CLIP models (ViT-B/16, B/16+, L/14) on eight image sets; we move "
    "them between ViTs of widths 64 and 96 pre-trained on MNIST and Fashion-MNIST, on shifts of these "
    "inputs, and show the mean of the tasks' shares where the paper's are of mean gains"
)


def printed_averages(pair: tuple[float, float], gains: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return the paper's column AVG from its ΔAcc: the accuracy, and the share of the source's gain."""
    (zero_shot, whole), printed = pair, {}
    for row, gain in gains.items():
        printed[row, "accuracy"] = round(zero_shot + gain, 2)
        printed[row, "share of the source's gain"] = round(100 * gain / whole, 1)
    return printed


def _counted(name: str, *gains: float) -> dict[str, float]:
    """Return the rows of 1, 2, 5, … batches or examples per class."""
    return {f"{name} = {count}": gain for count, gain in zip((1, 2, 5, 10, 20), gains, strict=False)}


def table_by_count(
    title: str,
    part: str,
    gains: Mapping[str, tuple[float, ...]],
    pair: tuple[float, float],
    **extra: Any,
) -> Table:
    """Return a table over the number of batches (B) or of examples per class (K)."""
    rows = bound_rows(part)
    printed: dict[str, float] = {"target zero-shot": 0.0, "source fine-tuned": pair[1]}
    for name, own in gains.items():
        method, _, letter = name.partition(", ")
        kind = {"B": "batches", "K": "shots"}[letter]
        rows += [
            Row(f"{name} = {count}", {"method": method, "part": part, kind: count})
            for count in (1, 2, 5, 10, 20)
        ]
        printed |= _counted(name, *own)
    paper = printed_averages(pair, printed)
    return Table(title=title, rows=tuple(rows), columns=COLUMNS, paper=paper, setting=SETTING, **extra)


def bound_rows(part: str) -> list[Row]:
    """Return the rows that bound what a transport can do."""
    return [Row(name, {"method": name, "part": part}) for name in BOUND_ROWS]


def table_of_methods(
    title: str,
    part: str,
    methods: tuple[str, ...],
    pair: tuple[float, float],
    gains: dict[str, float],
    **extra: Any,
) -> Table:
    """Return a table of methods with ten batches."""
    rows = bound_rows(part)
    rows += [Row(name, {"method": name, "part": part, "batches": 10}) for name in methods]
    paper = printed_averages(pair, {"target zero-shot": 0.0, "source fine-tuned": pair[1], **gains})
    return Table(title=title, rows=tuple(rows), columns=COLUMNS, paper=paper, **extra)
