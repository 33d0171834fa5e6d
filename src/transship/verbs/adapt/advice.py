"""What the figures say to a user: the adapted model, or a raw one that costs seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def advice(validation: float, rows: int, metric: str, raw: Sequence[Mapping[str, Any]], method: str) -> str:
    """Return one sentence: which model to use, by the validation rows."""
    if not raw:
        return ""
    best = min(raw, key=lambda row: row["validation"])
    name, figure = best["name"], float(best["validation"])
    noise = _noise(validation, figure, rows, metric)
    figures = f"{metric} {validation:.4f} against {figure:.4f}"
    shown = f"{figures} on {rows} validation rows"
    if validation < figure - noise:
        return f"use the adapted model ({method}): {shown} of the best raw baseline ({name})"
    if validation > figure + noise:
        return f"use the raw baseline {name}, not the adapted model ({method}): {shown}"
    return (
        f"{rows} validation rows show no difference between the adapted model ({method}) and the raw "
        f"baseline {name}: {figures}; {name} is the cheaper one"
    )


def _noise(first: float, second: float, rows: int, metric: str) -> float:
    """Return one standard error of a 0-1 error at these figures; other metrics are taken as they are."""
    if metric != "error" or not rows:
        return 0.0
    middle = min(max((first + second) / 2, 0.5 / rows), 1 - 0.5 / rows)
    return float((middle * (1 - middle) / rows) ** 0.5)


__all__ = ["advice"]
