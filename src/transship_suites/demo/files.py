"""The demo's data as files, so that the README's commands can be tried on what the demo leaves behind."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transship_suites.demo.models import Digits

SPLITS = ("train", "test")
# libraries that are here anyway, and how many descriptions of their functions are taken of each
LIBRARIES, OF_EACH = ("numpy", "scipy.signal", "scipy.special", "scipy.stats", "sklearn.metrics"), 80


def leave_behind(
    folder: Path, tasks: Mapping[str, tuple[Digits, Digits]], waves: tuple[tuple[Any, Any], tuple[Any, Any]]
) -> Path:
    """Write `folder/NAME.npz` for every task, `waves.npz` and `texts.jsonl`, unless the folder is there.

    Each array file has inputs `x` [n, 1, 8, 8], `label` [n] and `split` [n]: train or test. A text has an id,
    the text and a label.
    """
    from transship.atomic import atomic_folder

    if folder.exists():
        return folder
    with atomic_folder(folder) as place:
        for name, parts in tasks.items():
            _write(place / f"{name}.npz", [part.images for part in parts], [part.labels for part in parts])
        _write(place / "waves.npz", [inputs for inputs, _ in waves], [labels for _, labels in waves])
        rows = (json.dumps(row) + "\n" for row in descriptions())
        (place / "texts.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


def descriptions() -> list[dict[str, str]]:
    """Return what functions of installed libraries do, a sentence each, labelled with the library's name."""
    rows: dict[str, dict[str, str]] = {}
    for library in LIBRARIES:
        module, before = importlib.import_module(library), len(rows)
        for name in sorted(module.__all__):
            parts = (inspect.getdoc(getattr(module, name)) or "").split("\n\n")
            # signatures have brackets, headings have no words
            words = [part for part in parts if part.count(" ") > 3 and "(" not in part and "--" not in part]
            if words and len(rows) < before + OF_EACH:
                text = " ".join(words[0].split())[:160]
                rows.setdefault(text, {"id": f"{library}.{name}", "text": text, "label": library})
    return list(rows.values())


def _write(file: Path, inputs: list[Any], labels: list[Any]) -> None:
    splits = np.repeat(SPLITS, [len(part) for part in labels])
    np.savez_compressed(file, x=np.concatenate(inputs), label=np.concatenate(labels), split=splits)
