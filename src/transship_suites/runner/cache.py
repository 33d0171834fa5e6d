"""What is costly to make is made once: folders of safetensors and JSON, found by the hash of what went in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from transship.errors import OutputError

if TYPE_CHECKING:
    import numpy as np

Made = TypeVar("Made")
ENTRY = "entry.json"
SCHEMA = 1
_LOG = logging.getLogger(__name__)
_PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib"}


def cache_home() -> Path:
    """Return where suites keep things: `$TRANSSHIP_CACHE/suites`, else `~/.cache/transship/suites`."""
    named = os.environ.get("TRANSSHIP_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "transship") / "suites"


def content_key(parts: Any) -> str:
    """Return the hash of a JSON value; the order of keys does not count."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def save_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], folder: Path) -> None:
    """Write named arrays as `arrays.safetensors`."""
    import numpy as np
    from safetensors.numpy import save_file

    # safetensors writes the buffer as it lies: a transposed view would come back scrambled
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "arrays.safetensors"
    )


def load_arrays(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays that `save_arrays` wrote."""
    from safetensors.numpy import load_file

    arrays: dict[str, np.ndarray[Any, Any]] = load_file(folder / "arrays.safetensors")
    return arrays


def save_json(value: Any, folder: Path) -> None:
    """Write a JSON value as `value.json`."""
    (folder / "value.json").write_text(json.dumps(value, allow_nan=False), encoding="utf-8")


def load_json(folder: Path) -> Any:
    """Read the value that `save_json` wrote."""
    return json.loads((folder / "value.json").read_text(encoding="utf-8"))


class Cache:
    """Entries under `<home>/made/<kind>/<key>`: folders of files, with their hashes in `entry.json`.

    Several processes may use one cache: a file lock per key lets one of them make an entry while the others
    wait. A killed maker leaves no entry; a damaged entry is noticed by its hashes and made again.

    Attributes:
        home: the folder of the cache.
        not_before: entries made before this time (seconds since the epoch) are made again.
    """

    def __init__(self, home: Path, *, not_before: float = 0.0) -> None:
        self.home, self.not_before = home, not_before

    def get(
        self,
        kind: str,
        parts: Mapping[str, Any],
        make: Callable[[], Made],
        *,
        save: Callable[[Made, Path], None],
        load: Callable[[Path], Made],
    ) -> Made:
        """Return the thing of `kind` that `parts` determine: loaded where it is sound, else made first.

        Also what was just made comes back through `load`, so that a first and a second run compute the same.
        """
        key = content_key({"kind": kind, "parts": parts, "schema": SCHEMA})[:40]
        folder = self.home / "made" / kind / key
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if folder.exists():
                loaded = self._load_sound(folder, load)
                if loaded:
                    return loaded[0]
            self._make(folder, parts, make, save)
            return load(folder)

    def _load_sound(self, folder: Path, load: Callable[[Path], Made]) -> tuple[Made] | None:
        """Return what the entry holds; None (and say why) where it is damaged or too old."""
        fault = _fault(folder, self.not_before)
        if fault is None:
            try:
                return (load(folder),)
            except Exception as error:  # any loader, any damage: the entry is made again
                fault = f"cannot be loaded ({error})"
        if fault:
            _LOG.warning("%s: the cached entry %s and is made again", folder, fault)
        return None

    def _make(
        self,
        folder: Path,
        parts: Mapping[str, Any],
        make: Callable[[], Made],
        save: Callable[[Made, Path], None],
    ) -> None:
        for left_over in folder.parent.glob(f".{folder.name}.*"):
            shutil.rmtree(left_over)
        made = make()
        fresh = folder.parent / f".{folder.name}.{os.getpid()}"
        fresh.mkdir()
        try:
            save(made, fresh)
            _seal(fresh, parts)
            if folder.exists():
                shutil.rmtree(folder)
            fresh.rename(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise


def _seal(folder: Path, parts: Mapping[str, Any]) -> None:
    """Write `entry.json`: what went in, when, and the hash of every file."""
    files = {
        file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()
    }
    pickled = [name for name, file in files.items() if file.suffix in _PICKLES]
    if pickled:
        raise OutputError(
            f"the cache takes no pickled files ({', '.join(pickled)})",
            where=folder.parent.name,
            fix="save arrays as safetensors and the rest as JSON",
        )
    entry = {
        "schema": SCHEMA,
        "made": time.time(),
        "parts": parts,
        "files": {name: _sha256(file) for name, file in files.items()},
    }
    (folder / ENTRY).write_text(json.dumps(entry, indent=1, sort_keys=True), encoding="utf-8")


def _fault(folder: Path, not_before: float) -> str | None:
    """Return what is wrong with an entry; "" where it is merely too old, None where it is sound."""
    try:
        entry = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
        made, files = float(entry["made"]), dict(entry["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"has no readable {ENTRY}"
    if made < not_before:
        return ""
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            return f"lacks {name}"
        if _sha256(file) != expected:
            return f"has a damaged {name}"
    return None


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the system frees it when the holder dies."""
    try:
        import fcntl
    except ImportError:  # Windows: two makers may do the same work twice; the later rename stands
        yield
        return
    with path.open("a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
