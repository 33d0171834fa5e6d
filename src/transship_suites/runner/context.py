"""What a case's `run` is handed beside its case: options, seeds, and a place where costly things are made.

Costly things are named arrays in folders, found by the hash of what went in.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transship import folders
from transship.atomic import atomic_folder
from transship.locks import locked
from transship.numerics import derive_seed
from transship_suites.runner.quantities import Case, Measurement, Options
from transship_suites.runner.sources import code_fingerprint

if TYPE_CHECKING:
    from transship.types import Array

ENTRY, ARRAYS = "entry.json", "arrays.safetensors"
SCHEMA = 1
_LOG = logging.getLogger(__name__)


def cache_home() -> Path:
    """Return where suites keep things: `$TRANSSHIP_CACHE/suites`, else `~/.cache/transship/suites`."""
    return folders.cache("suites")


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

    with atomic_folder(folder, force=True, sync=False, private=True) as draft:
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


class Context:
    """The surroundings of one case.

    Attributes:
        suite: the suite's name.
        case: the case that is run.
        options: of the scale.
        device: where models run.
        attachments: small JSON values that are kept with the result.
    """

    def __init__(
        self, suite: str, case: Case, options: Options, cache: Cache, *, device: str = "cpu"
    ) -> None:
        self.suite, self.case, self.options, self.device = suite, case, options, device
        self._cache = cache
        self.attachments: dict[str, Any] = {}

    def seed(self, *keys: object) -> int:
        """Return a seed for one purpose, from the case's seed and what names the purpose.

        It does not depend on the case's factors, so that rows that name the same purpose share its draws.
        """
        return derive_seed(self.case.seed, self.suite, *keys)

    def cached(
        self,
        kind: str,
        parts: Mapping[str, Any],
        make: Callable[[], Mapping[str, Array]],
        *,
        code: tuple[Any, ...],
    ) -> dict[str, Array]:
        """Return the arrays that `make` computes, once for the same parts and code, in any case of any suite.

        Args:
            kind: names the sort of thing; a folder of the cache.
            parts: everything that `make` depends on: options, seeds, fingerprints of data. JSON values.
            make: computes named arrays.
            code: the functions and classes whose change makes it another thing. Their source text is hashed
                without comments; what they call in turn must be named too, or stand for itself as a part.
        """
        return self._cache.get(kind, {"parts": dict(parts), "code": code_fingerprint(*code)}, make)

    def attach(self, name: str, value: Any) -> None:
        """Keep a small JSON value (a matrix, points of a picture) with the result, for `Suite.figures`."""
        self.attachments[name] = value


class Experiment(ABC):
    """The models and data of one case, and what is measured of them: a suite's `run` may be one."""

    def __init__(self, case: Case, context: Context) -> None:
        self.case, self.context, self.options = case, context, context.options

    def draw(self, *keys: object) -> int:
        """Return a seed for one purpose, as small as random generators take them."""
        return self.context.seed(*keys) % 2**31

    @abstractmethod
    def measured(self) -> Iterable[Measurement]:
        """Measure the case."""

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.measured())
