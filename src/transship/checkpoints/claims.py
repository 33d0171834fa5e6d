"""What a model folder claims, held against its files before a module is built of them.

A config is a few lines of text, and building what it names takes as much time and memory as it likes: a
thousand million layers, or code that is fetched from the hub. Symbolic links that stay in the folder are
followed, no other is.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from transship.checkpoints.weightfile import quote
from transship.errors import CheckpointError

# how many modules there are: no more than tensors, and few families share one between many
_COUNTS = re.compile(r"layers?$|blocks?(_per_stage)?$|depths?$|(?<!_per_)stages?$|towers?$|^n_layer")
# how long a side of a tensor is, or a list of names
_SIDES = re.compile(r"size|dim|width|channels|hidden|labels|experts|heads|vocab|d_model|d_ff|n_embd|n_head")
# numbers that nothing is built by
_FREE = re.compile(r"theta|base|seed|freq|scal|limit|factor|clip|_value$")
_FEW, _MANY, _MOST = 64, 1 << 20, 1 << 24
# attention that comes with torch and transformers; all others are fetched from the hub
_OWN_ATTENTION = {"eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm", None}
# a module of a sentence encoder is a folder, and its tensors are named by it: 2_Dense/linear.weight
LISTING = "modules.json"
WEIGHTS = "model.safetensors"
_PART = re.compile(r"(\d+_[\w-]+/(?:\w[\w-]*/)*)[^/]+", re.ASCII)


def refuse_links(folder: Path) -> None:
    """Refuse a model folder in which a file is a link to somewhere else."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and path.is_file():
            inside(path, folder)


def refuse_links_below(folder: Path) -> None:
    """Refuse a folder of ours that holds a link to somewhere else at any depth: all of it is copied on."""
    for root, folders, files in os.walk(folder):
        for path in (Path(root, name) for name in sorted([*folders, *files])):
            if path.is_symlink():
                inside(path, folder)


def inside(path: Path, folder: Path) -> Path:
    """Return the path of a folder's file; refuse one that leads out of the folder.

    A snapshot in the hub's cache links to the blobs of the same repository, and these count as its own.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    blobs = root.parents[1] / "blobs" if root.parent.name == "snapshots" else None
    if real.is_relative_to(root) or (blobs is not None and real.parent == blobs):
        return path
    raise CheckpointError(
        f"{quote(path.relative_to(folder).as_posix())} is a link to a file outside the folder",
        where=str(folder),
        fix="put the file itself there",
    )


def check_sizes(config: Mapping[str, Any], shapes: Iterable[Sequence[int]], where: str) -> None:
    """Refuse a config with more layers, wider sides or more of anything than the file can have."""
    listed = list(shapes)
    longest = max((side for shape in listed for side in shape), default=0)
    for key, value in _entries(config):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or _FREE.search(key):
            continue
        if _COUNTS.search(key):
            most = max(len(listed), _FEW)
        else:
            most = max(longest, _MANY if _SIDES.search(key) else _MOST)
        if most < abs(value) < math.inf:
            raise CheckpointError(
                f"config.json sets {key} to {value:.0f}, and there are {len(listed)} tensors with sides "
                f"up to {longest}",
                where=where,
                fix="check that config.json belongs to these weights",
            )


def check_code(config: Mapping[str, Any], where: str, *, trusted: bool) -> None:
    """Refuse a config that asks for attention from the hub, unless the user trusts its repository."""
    for key, value in _entries(config):
        if not trusted and "_implementation" in key and value not in _OWN_ATTENTION:
            raise CheckpointError(
                f"config.json asks for the {key} '{str(value)[:80]}', which is code from the hub",
                where=where,
                fix="remove the entry, or pass --trust-remote-code if you trust it",
            )


def _entries(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value with the nearest key above it."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _entries(part, key if "_implementation" in key else str(name))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _entries(part, key)
    else:
        yield key, value


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
