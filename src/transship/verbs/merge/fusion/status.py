"""What a fusion's folder says of itself; no model is opened."""

from pathlib import Path
from typing import Any

from transship.numerics import format_bytes
from transship.verbs.merge.fusion.evaluate import StepReport, summary
from transship.verbs.merge.fusion.state import kept_bytes, read_about

_SHOWN = ("name", "source", "sha256", "classes")


def status(folder: Path) -> dict[str, Any]:
    """Return base, method, tasks, figures and bytes of a saved fusion."""
    about = read_about(folder)
    history = [StepReport(**step) for step in about["history"]]
    names = [task["name"] for task in about["tasks"]]
    found = summary(history, names, {task["name"]: task["individual"] for task in about["tasks"]})
    return {
        "folder": str(folder),
        "base": about["base"],
        **about["choices"],
        "strength_used": about["strength"],
        "tasks": [
            {key: task[key] for key in ("name", "source", "sha256", "classes")} for task in about["tasks"]
        ],
        "quality": found,
        "steps": about["history"],
        "bytes": kept_bytes(folder),
    }


def status_lines(found: dict[str, Any]) -> list[str]:
    """Return the same as lines to read."""
    lines = [
        f"{found['folder']}: {found['method']} on {found['base']['name']}, heads {', '.join(found['heads'])}",
    ]
    if not found["tasks"]:
        lines.append("no models yet; add one with: transship merge add OUT TUNED --data D")
    kind = found["heads"][0]
    quality = found["quality"]
    figures = quality["heads"].get(kind)
    last = found["steps"][-1] if found["steps"] else None
    for task in found["tasks"]:
        name = task["name"]
        text = f"  {name}: {task['classes']} classes" if task["classes"] else f"  {name}: no head"
        score = None if last is None else last["accuracy"].get(kind, {}).get(name)
        if score is not None:
            text += f", accuracy {100 * score:.1f} %"
            own = quality["individual"].get(name)
            text += "" if own is None else f" (its own model {100 * own:.1f} %)"
        shift = None if last is None else last["shift"].get(name)
        text += "" if shift is None else f", features moved by {shift:.3g}"
        lines.append(f"{text}, from {task['source']}")
    if figures is not None:
        line = f"  ACC {100 * figures['acc']:.1f} %"
        if figures["bwt"] is not None:
            line += f", BWT {100 * figures['bwt']:+.1f} (last task left out)"
            line += f", BWT with fixed heads {100 * figures['bwt_fixed_heads']:+.1f}"
        lines.append(line)
    parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in found["bytes"].items() if size)
    if parts:
        lines.append(f"  kept: {parts}")
    return lines
