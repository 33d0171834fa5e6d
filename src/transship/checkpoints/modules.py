"""A sentence encoder's folder: the modules behind its transformer, whose weights are weights like others.

A module's tensors are named by its folder: `2_Dense/linear.weight`. So they are merged, compared and hashed
with the model's own, and are written back into that folder.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath

from transship.checkpoints.claims import inside

LISTING = "modules.json"
WEIGHTS = "model.safetensors"
_PART = re.compile(r"(\d+_[\w-]+/(?:\w[\w-]*/)*)[^/]+", re.ASCII)


def part_of(tensor: str) -> str:
    """Return the folder in a tensor's name, with the stroke after it; empty for the model's own tensors."""
    match = _PART.fullmatch(tensor)
    return match[1] if match is not None else ""


def module_files(folder: Path) -> dict[str, Path]:
    """Return {name in the folder: file} of the modules that `modules.json` names, and no other."""
    try:
        entries = json.loads((folder / LISTING).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    listed = entries if isinstance(entries, list) else []
    parts = [entry.get("path") for entry in listed if isinstance(entry, dict)]
    plain = [part for part in parts if isinstance(part, str) and part not in ("", ".", "..")]
    return {
        path.relative_to(folder).as_posix(): inside(path, folder)
        for part in plain
        if "\0" not in part and PurePosixPath(part).name == part
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    }


def module_weights(folder: Path) -> dict[str, Path]:
    """Return {prefix of its tensors: file} of the modules that have weights."""
    return {
        name.removesuffix(WEIGHTS): path
        for name, path in module_files(folder).items()
        if path.name == WEIGHTS and part_of(name)
    }
