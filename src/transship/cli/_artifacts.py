"""What transship's own folders say of themselves, for `transship inspect`; no arrays are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Described = tuple[dict[str, Any], list[str]]


def describe_artifact(path: str) -> Described | None:
    """Return what a map, an adapted model or a fusion is, as JSON and as lines; None for anything else."""
    for file, describe in _KINDS.items():
        if (Path(path) / file).is_file():
            return describe(Path(path))
    return None


def _translator(folder: Path) -> Described:
    from transship.verbs.translate.artifact import read_document

    document = read_document(folder)
    about, state = document.get("about", {}), document["state"]
    found = {
        "kind": "translator",
        "method": document["method"],
        "parameters": document["parameters"],
        "widths": [state.get("n_features_in_"), state.get("n_features_out_")],
        "hash": document["hash"],
        "about": about,
    }
    old, new = found["widths"]
    lines = [f"{folder}: map of embeddings, {document['method']}, {old} → {new} wide"]
    if about.get("source") or about.get("target"):
        lines.append(f"  {about.get('source') or 'unnamed'} → {about.get('target') or 'unnamed'}")
    pairs, quality = about.get("pairs", {}), about.get("quality", {})
    if pairs:
        lines.append(f"  fitted on {pairs['count']:,} pairs of {pairs['old']} and {pairs['new']}")
    held = quality.get("held_out")
    if held:
        alone = quality.get("old_alone")
        beside = "" if alone is None else f" (old index alone {alone:.3f})"
        lines.append(f"  held out: recall@{held['k']} {held['recall']:.3f}{beside}, {quality['kind']}")
    return found, lines


def _adapted(folder: Path) -> Described:
    from transship.verbs.adapt.artifact import read_document

    document = read_document(folder)
    about = document["about"]
    names = ("backbone", "task", "method", "metric", "rows", "validation", "baselines", "advice", "data")
    found = {"kind": "adapted", **{name: about.get(name) for name in names}, "inputs": document["inputs"]}
    size = " × ".join(map(str, [document["inputs"]["channels"], *document["inputs"]["size"]]))
    metric = about["metric"]
    lines = [
        f"{folder}: adapted model, {about['method']} on {about['backbone']}",
        f"  {about['task']} of {document['inputs']['kind']} ({size})",
        f"  {about['rows']['train']:,} training rows; validation {metric} {about['validation'][metric]:.4f}",
    ]
    lines += [f"  raw {row['name']}: {row['validation']:.4f}" for row in about.get("baselines", [])]
    return found, lines + ([f"  {about['advice']}"] if about.get("advice") else [])


def _fusion(folder: Path) -> Described:
    from transship.verbs.merge.fusion.status import status, status_lines

    found = status(folder)
    return {"kind": "fusion", **found}, status_lines(found)


_KINDS: dict[str, Callable[[Path], Described]] = {
    "map.json": _translator,
    "adapted.json": _adapted,
    "fusion.json": _fusion,
}
