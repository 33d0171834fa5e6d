"""A map at rest: a folder with `map.safetensors` (arrays) and `map.json` (everything else), no pickle.

`map.json` carries the method and its parameters, the hash of the arrays, the models and anchors the map was
fitted on, and the quality that was measured. A map whose arrays do not match their hash is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load, save

from transship import __version__
from transship.atomic import atomic_folder, check_target
from transship.errors import DataError
from transship.outside import complete, read_json
from transship.registry import build_method
from transship.types import Array
from transship.verbs.translate.maps.base import Translator

FORMAT, VERSION = "transship.translator", 1
ARRAYS_FILE, ABOUT_FILE = "map.safetensors", "map.json"
# 8-byte hashes of the ids that the map was fitted on, sorted
IDS_FILE = "fitted-on.npy"
_TENSOR = "$array"
MOST_WIDTH = 1 << 20  # of a vector


@dataclass(frozen=True)
class SavedMap:
    """A translator with what is known about it.

    Attributes:
        translator: the fitted estimator.
        about: provenance and quality: `source`, `target` (model names), `anchors`, `quality`, …
        hash: of method, parameters and arrays; the name that translated rows carry.
        path: where it was read from.
    """

    translator: Translator
    about: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""
    path: str = ""

    @property
    def direction(self) -> Literal["index", "query"]:
        """Whether it moves rows of an index or queries."""
        return "query" if self.about.get("direction") == "query" else "index"

    @property
    def unit_target(self) -> bool:
        """Whether translated rows are brought to unit length, as the new model's are."""
        return bool(self.about.get("unit_target", False))

    @property
    def widths(self) -> tuple[int, int]:
        return int(self.translator.n_features_in_), int(self.translator.n_features_out_)

    def saw(self, ids: Sequence[Any]) -> Array:
        """Return which of these ids the map was fitted on, [ids]; none where its folder does not say."""
        file = Path(self.path) / IDS_FILE
        if not self.path or not file.is_file():
            return np.zeros(len(ids), dtype=bool)
        try:
            return np.isin(_id_hashes(ids), np.load(file, allow_pickle=False))
        except Exception as error:  # numpy raises whatever it meets in a broken header
            raise DataError(
                "is not a readable .npy file", where=str(file), fix="fit the map again"
            ) from error


def save_map(
    translator: Translator,
    folder: str | Path,
    about: Mapping[str, Any] | None = None,
    *,
    ids: Sequence[Any] = (),
    force: bool = False,
) -> SavedMap:
    """Write `translator` and what is known about it into `folder`, whole or not at all.

    `ids` are those of the rows that it was fitted on, so that nobody measures it on them unawares.
    """
    target = Path(folder)
    check_target(target, force=force, kind="folder")
    arrays: dict[str, Array] = {}
    state = {
        name: _take(value, name, arrays)
        for name, value in sorted(vars(translator).items())
        if name.endswith("_") and not name.startswith("_") and name != "moments_"
    }
    data = save({name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())})
    document = {
        "format": FORMAT,
        "version": VERSION,
        "transship": __version__,
        "method": translator.map_name,
        "parameters": translator.get_params(),
        "state": state,
        "arrays": hashlib.sha256(data).hexdigest(),
    }
    identity = map_hash(document)
    document |= {"hash": identity, "about": dict(about or {})}
    with atomic_folder(target, force=force) as beside:
        (beside / ARRAYS_FILE).write_bytes(data)
        if len(ids):
            np.save(beside / IDS_FILE, np.sort(_id_hashes(ids)))
        (beside / ABOUT_FILE).write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")
    return SavedMap(translator, dict(about or {}), identity, str(target))


def load_map(folder: str | Path) -> SavedMap:
    """Read what `save_map` wrote, here or on the hub; a map cut short or changed is one clear error."""
    place = Path(folder)
    if not place.exists():
        from transship.data.locate import written_folder  # start-up: most maps are folders here

        place = written_folder(folder)
    document = read_document(place)
    try:
        data = (place / ARRAYS_FILE).read_bytes()
    except OSError as error:
        raise DataError(
            f"has no readable {ARRAYS_FILE}", where=str(place), fix="fit the map again"
        ) from error
    if hashlib.sha256(data).hexdigest() != document.get("arrays") or map_hash(document) != document.get(
        "hash"
    ):
        raise DataError(
            "the map is cut short or was changed after it was written",
            where=str(place),
            fix="fit the map again",
        )
    with complete(place, "fit the map again"):
        arrays = load(data)
        translator = build_method("translate", str(document["method"]), document["parameters"])
        for name, value in document["state"].items():
            setattr(translator, name, _put(value, arrays))
        saved = SavedMap(translator, dict(document.get("about", {})), str(document["hash"]), str(place))
        _check_widths(saved)
    return saved


def _check_widths(saved: SavedMap) -> None:
    """Translate a row, so that parts that do not fit together are noticed before an index is opened."""
    narrow, wide = saved.widths
    if not 0 < narrow <= MOST_WIDTH or saved.translator.transform(np.ones((1, narrow))).shape != (1, wide):
        raise ValueError(f"a row of {narrow} does not become one of {wide}")


def _id_hashes(ids: Sequence[Any]) -> Array:
    texts = (str(identity).encode() for identity in ids)
    digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.asarray([int.from_bytes(digest, "big") for digest in digests], dtype=np.uint64)


def map_hash(document: Mapping[str, Any]) -> str:
    """Return the hash of what the map computes: method, parameters, state and arrays, not its provenance."""
    kept = {
        name: document.get(name) for name in ("format", "version", "method", "parameters", "state", "arrays")
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]


def read_document(place: Path) -> dict[str, Any]:
    """Return what the folder says of its map; no arrays are read."""
    if place.is_file():
        raise DataError(
            "is a file, and a map is a folder",
            where=str(place),
            fix="give MAP first, as in `transship translate apply MAP IN OUT`",
        )
    if not (place / ABOUT_FILE).is_file():
        raise DataError(
            f"holds no {ABOUT_FILE}",
            where=str(place),
            fix="give the folder that `transship translate fit` wrote",
        )
    document: dict[str, Any] = read_json(place / ABOUT_FILE, "fit the map again", DataError)
    if document.get("format") != FORMAT:
        raise DataError(
            "is not a translator", where=str(place), fix="give a map of `transship translate fit`"
        )
    if not isinstance(document.get("version"), int) or document["version"] > VERSION:
        raise DataError(
            f"has version {document.get('version')}, and this transship reads up to {VERSION}",
            where=str(place),
            fix="update transship, or fit the map again",
        )
    return document


def _take(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    """Return `value` as JSON holds it, its arrays put aside under their path."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        arrays[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        return {str(key): _take(item, f"{path}.{key}", arrays) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_take(item, f"{path}.{number}", arrays) for number, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _put(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return arrays[value[_TENSOR]]
        return {key: _put(item, arrays) for key, item in value.items()}
    return [_put(item, arrays) for item in value] if isinstance(value, list) else value
