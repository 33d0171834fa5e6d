"""Where vectors lie: Parquet, npy, LanceDB, Qdrant and FAISS behind one small protocol.

A store is named `kind:location#table`; the kind may be left out where the name's ending says it:

    vectors.parquet   folder/            Parquet: a file, or a folder with or without hive partitions
    s3://bucket/folder                   likewise, on any file system that fsspec opens
    vectors.npy                          numpy, with ids in vectors.ids.npy or row numbers
    folder/table.lance                   LanceDB
    index.faiss                          FAISS
    qdrant:folder#collection             Qdrant, embedded
    qdrant:http://host:6333#collection   Qdrant, a server
"""

from __future__ import annotations

import importlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from transship.errors import DataError, OptionError, TransshipError
from transship.verbs.translate.stores.files import plain
from transship.verbs.translate.stores.protocol import Batch, Columns, Place, Sink, Source, Stamp

# kind → its module; each has `open_source(place)` and `open_sink(place, source, stamp, ...)`
KINDS = {
    "parquet": "parquet",
    "npy": "numpy_file",
    "lance": "lance",
    "qdrant": "qdrant",
    "faiss": "faiss_file",
}
_ENDINGS = {".parquet": "parquet", ".pq": "parquet", ".npy": "npy", ".lance": "lance", ".faiss": "faiss"}
_ENDINGS |= {".index": "faiss"}


def place(reference: str | Path, columns: Columns | None = None) -> Place:
    """Return what `reference` names, without looking whether it is there."""
    text = str(reference)
    kind, _, rest = text.partition(":")
    if kind not in KINDS or not rest:
        kind, rest = "", text
    location, _, name = rest.partition("#")
    location = plain(location)
    if not kind:
        kind = _ENDINGS.get(Path(location).suffix.lower(), "parquet")
    if kind == "parquet" and "://" not in location:
        location = os.path.abspath(location)  # workers of a cluster stand in other folders
    if kind == "lance" and not name:
        name, location = Path(location).stem, str(Path(location).parent)
    return Place(kind, location, name, text, columns or Columns())


def open_source(reference: str | Path, columns: Columns | None = None) -> Source:
    """Open a store for reading; one clear error when it is not there or holds no vectors."""
    found = place(reference, columns)
    source: Source = _module(found).open_source(found)
    if source.rows == 0:
        raise DataError("holds no rows", where=found.text, fix="give a store with vectors")
    return source


def open_sink(
    reference: str | Path, source: Source, stamp: Stamp, *, width: int, force: bool = False
) -> Sink:
    """Open a store for writing the rows of `source`, at the row where an interrupted run stopped."""
    found = place(reference)
    if found.kind == source.place.kind:
        found = replace(found, columns=source.place.columns)
    if (found.kind, found.location, found.name) == (
        source.place.kind,
        source.place.location,
        source.place.name,
    ):
        raise OptionError("is the source itself", where=found.text, fix="write to another place")
    sink: Sink = _module(found).open_sink(found, source, stamp, width=width, force=force)
    return sink


def is_finished(reference: str | Path, source: Source, stamp: Stamp) -> bool:
    """Return whether the target is whole already and from the same map and source: nothing is left to do.

    A run that was killed after its last rename looks like this; what it had no time to sweep up is removed.
    """
    found = place(reference)
    try:
        made: Source = _module(found).open_source(found)
    except TransshipError:
        return False
    from transship.verbs.translate.stores.parquet import sweep

    whole = made.rows == source.rows and made.stamp.to_json() == stamp.to_json()
    made.close()
    if whole and found.kind == "parquet":
        sweep(found)
    elif whole:
        target = Path(found.location)
        for left in target.parent.glob(f".{target.name}.partial*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return whole


def _module(found: Place) -> Any:
    return importlib.import_module(f"{__name__}.{KINDS[found.kind]}")


__all__ = [
    "KINDS",
    "Batch",
    "Columns",
    "Place",
    "Sink",
    "Source",
    "Stamp",
    "is_finished",
    "open_sink",
    "open_source",
    "place",
]
