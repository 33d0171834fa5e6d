"""When is a pretrained body worth it? RECRAFT with one thing changed at a time, beside raw models.

Every seed takes one of the series in turn, so that each change has as many paired figures as there are seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transship_suites.recraft.declared import DEFAULT, HYBRID, RAW_NAMES, TITLES
from transship_suites.runner import Condition, Heading, Quantity, cell, highest, percent

VARIANT = "worth"
SERIES = ("ElectricDevices", "waves")
FEW, MORE = 200, 600
PLAIN = "recraft"
LARGER = "a body of 12 layers"
STEM, STEM_SETTINGS = "random convolutions inside φ", {"stem": "rocket"}
# what each row changes: the method, settings of the estimator, rows
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "24 tokens": {"method": PLAIN, "settings": {"patch": None, "tokens": 24}},
    "longer windows beside every patch": {"method": PLAIN, "settings": {"stem": "multiscale"}},
    STEM: {"method": PLAIN, "settings": STEM_SETTINGS},
    "LoRA of rank 8 on the body": {
        "method": PLAIN,
        "settings": {"lora_rank": 8, "learning_rate": 1e-3, "embedder_factor": 2.0},
    },
    "a quarter of the body's rate": {
        "method": PLAIN,
        "settings": {"learning_rate": 5e-5, "embedder_factor": 40.0},
    },
    LARGER: {"method": PLAIN},
    "three times the rows": {"method": PLAIN, "rows": MORE},
}
# is it the body, or the stem? And does the stem add to the raw model that the network may stand on?
STEM_RANDOM, STEM_ON_RAW = f"{STEM}, random weights", f"{STEM}, on the best raw model"
OF_STEM: Mapping[str, Mapping[str, Any]] = {
    STEM_RANDOM: {"method": "scratch", "settings": STEM_SETTINGS},
    STEM_ON_RAW: {"method": HYBRID, "settings": STEM_SETTINGS},
}
# measured beside them: raw models on the larger set
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "raw models, three times the rows": {"method": "raw", "rows": MORE}
}


def variant(backbone: str, larger: str, **more: Any) -> dict[str, Any]:
    """Return the variant's options."""
    own = [name for name in CHANGES if name != LARGER]
    return {
        "tasks": list(SERIES),
        "rows": FEW,
        "test": 400,
        "in_turn": True,
        "unaided": ["raw", *BESIDE],
        "backbones": {backbone: [PLAIN, "scratch", *own, *OF_STEM, DEFAULT], larger: [LARGER]},
        "changes": {**CHANGES, **OF_STEM, **BESIDE},
        **more,
    }


def size_of(own: Mapping[str, Any], part: str) -> int | None:
    """Return how many rows a part of a variant has."""
    rows: int | None = own.get("changes", {}).get(part, {}).get("rows", own["rows"])
    return rows


def _accuracy(method: str, rows: int = FEW) -> Quantity:
    return cell("accuracy", variant=VARIANT, method=method, rows=rows)


def _rows_of(change: str) -> int:
    return int(CHANGES.get(change, {}).get("rows", FEW))


def best_change() -> Quantity:
    """Return how far the best change is above random convolutions on as many rows, seed by seed."""
    return highest(
        *(_accuracy(name, _rows_of(name)) - _accuracy("rocket", _rows_of(name)) for name in CHANGES)
    )


def above(method: str, *others: str) -> Quantity:
    """Return how far a row is above the best of others on the same few rows, seed by seed."""
    return _accuracy(method) - highest(*map(_accuracy, others))


def table_rows() -> tuple[Condition, ...]:
    """Return the rows of the table: the changes, the default, and raw models on few and on more rows."""
    named = [(TITLES[name], name, FEW) for name in (PLAIN, "scratch")]
    named += [(f"RECRAFT, {name}", name, _rows_of(name)) for name in CHANGES]
    named += [(f"RECRAFT, {STEM_ON_RAW}", STEM_ON_RAW, FEW), (f"scratch, {STEM}", STEM_RANDOM, FEW)]
    named += [(TITLES[name], name, FEW) for name in (DEFAULT, *RAW_NAMES)]
    named += [(f"{TITLES[name]}, three times the rows", name, MORE) for name in RAW_NAMES]
    return tuple(
        Condition(title, {"variant": VARIANT, "method": name, "rows": rows}) for title, name, rows in named
    )


def table_columns() -> tuple[Heading, ...]:
    """Return the columns; the difference is paired, and between models of the same rows."""
    difference = cell("accuracy") - cell("accuracy", method="rocket")
    return (
        *(percent(task, cell("accuracy", task=task)) for task in SERIES),
        percent("both", "accuracy"),
        percent("above random convolutions", difference),
        percent("raw model kept alone", "raw_alone", digits=0),
        Heading("CPU seconds", "seconds", digits=1),
    )
