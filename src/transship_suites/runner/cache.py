"""What is costly to make is made once: named arrays in folders, found by the hash of what went in."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transship.atomic import atomic_folder, locked

if TYPE_CHECKING:
    from transship.types import Array

ENTRY, ARRAYS = "entry.json", "arrays.safetensors"
SCHEMA = 1
_LOG = logging.getLogger(__name__)


def cache_home() -> Path:
    """Return where suites keep things: `$TRANSSHIP_CACHE/suites`, else `~/.cache/transship/suites`."""
    named = os.environ.get("TRANSSHIP_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "transship") / "suites"


def content_key(parts: Any) -> str:
    """Return the hash of a JSON value; the order of keys does not count."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """Entries under `<home>/made/<kind>/<key>`: arrays as safetensors, with their hash in `entry.json`.

    Several processes may use one cache: one of them makes an entry while the others wait. A killed maker
    leaves no entry; a damaged entry is noticed by its hash and made again.

    Attributes:
        home: the folder of the cache.
        not_before: entries made before this time (seconds since the epoch) are made again.
    """

    def __init__(self, home: Path, *, not_before: float = 0.0) -> None:
        self.home, self.not_before = home, not_before

    def get(
        self, kind: str, parts: Mapping[str, Any], make: Callable[[], Mapping[str, Array]]
    ) -> dict[str, Array]:
        """Return the arrays of `kind` that `parts` determine: read where they are sound, else made first.

        Also what was just made comes back from its file, so that a first and a second run compute the same.
        """
        from safetensors.numpy import load_file  # listing suites must not import numpy

        key = content_key({"kind": kind, "parts": parts, "schema": SCHEMA})[:40]
        folder = self.home / "made" / kind / key
        with locked(folder, wait=True):
            fault = _fault(folder, self.not_before) if folder.exists() else ""
            if fault:
                _LOG.warning("%s: the cached entry %s and is made again", folder, fault)
            if fault is not None:
                _write(make(), folder, parts)
            arrays: dict[str, Array] = load_file(folder / ARRAYS)
        return arrays


def _write(arrays: Mapping[str, Array], folder: Path, parts: Mapping[str, Any]) -> None:
    """Write arrays with `entry.json`: what went in, when, and their file's hash."""
    import numpy as np  # listing suites must not import numpy
    from safetensors.numpy import save_file

    with atomic_folder(folder, force=True, sync=False) as draft:
        # safetensors writes the buffer as it lies: a transposed view would come back scrambled
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, draft / ARRAYS)
        entry = {
            "schema": SCHEMA,
            "made": time.time(),
            "parts": parts,
            "files": {ARRAYS: _sha256(draft / ARRAYS)},
        }
        (draft / ENTRY).write_text(json.dumps(entry, indent=1, sort_keys=True), encoding="utf-8")


def _fault(folder: Path, not_before: float) -> str | None:
    """Return what is wrong with an entry; "" where it is merely too old, None where it is sound."""
    try:
        entry = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
        since, expected = float(entry["made"]), entry["files"][ARRAYS]
    except (OSError, ValueError, KeyError, TypeError):
        return f"has no readable {ENTRY}"
    if since < not_before:
        return ""
    if not (folder / ARRAYS).is_file():
        return f"lacks {ARRAYS}"
    return None if _sha256(folder / ARRAYS) == expected else f"has a damaged {ARRAYS}"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
