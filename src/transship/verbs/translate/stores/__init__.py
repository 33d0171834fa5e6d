"""Where vectors lie: Parquet, npy, LanceDB, Qdrant and FAISS behind one small protocol.

A store is named `kind:location#table`; the kind may be left out where the name's ending says it:

    vectors.parquet   folder/            Parquet: a file, or a folder with or without hive partitions
    s3://bucket/folder                   likewise, on any file system that fsspec opens
    vectors.npy                          numpy, with ids in vectors.ids.npy or row numbers
    folder/table.lance                   LanceDB
    index.faiss                          FAISS; index.faiss#IVF256,PQ16 is written as such an index
    qdrant:folder#collection             Qdrant, embedded
    qdrant:http://host:6333#collection   Qdrant, a server
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from transship.errors import DataError, OptionError, TransshipError
from transship.locks import locked
from transship.verbs.translate.settings import Columns
from transship.verbs.translate.stores.files import plain
from transship.verbs.translate.stores.protocol import (
    RowBatch,
    RowsDone,
    Stamp,
    Store,
    StorePlace,
    VectorSink,
    VectorSource,
)

# kind → its module, which has a `STORE`
KINDS = {
    "parquet": "parquet",
    "npy": "numpy_file",
    "lance": "lance",
    "qdrant": "qdrant",
    "faiss": "faiss_file",
}
_ENDINGS = {".parquet": "parquet", ".pq": "parquet", ".npy": "npy", ".lance": "lance", ".faiss": "faiss"}
_ENDINGS |= {".index": "faiss"}
# where vectors are never written, though a folder of Parquet files may have any name
_NO_STORES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".npz", ".pt", ".safetensors", ".arrow", ".feather")


def place(reference: str | Path, columns: Columns | None = None) -> StorePlace:
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
    return StorePlace(kind, location, name, text, columns or Columns())


def store(where: StorePlace) -> Store:
    """Return what the store that a place names can do."""
    return cast(Store, importlib.import_module(f"{__name__}.{KINDS[where.kind]}").STORE)


def open_source(reference: str | Path, columns: Columns | None = None) -> VectorSource:
    """Open a store for reading; one clear error when it is not there or holds no vectors."""
    where = place(reference, columns)
    source = store(where).source(where)
    if source.rows == 0:
        raise DataError("holds no rows", where=where.text, fix="give a store with vectors")
    return source


def open_sink(
    reference: str | Path, source: VectorSource, stamp: Stamp, *, width: int, force: bool = False
) -> VectorSink:
    """Open a store for writing the rows of `source`, at the row where an interrupted run stopped."""
    where, origin = place(reference), source.place
    if where.kind == origin.kind:
        where = replace(where, columns=origin.columns)
    if (where.kind, where.location, where.name) == (origin.kind, origin.location, origin.name):
        raise OptionError("is the source itself", where=where.text, fix="write to another place")
    ending = Path(where.location).suffix.lower()
    if where.kind == "parquet" and ending in _NO_STORES:
        fix = "name it .parquet, .npy, .lance or .faiss, or name a folder"
        raise OptionError(f"a {ending} file is no store of vectors", where=where.text, fix=fix)
    return store(where).sink(where, source, stamp, width, force)


@contextlib.contextmanager
def written_alone(reference: str | Path) -> Iterator[None]:
    """Hold a store as its only writer on this machine; Qdrant sees to it itself."""
    where = place(reference)
    if where.kind == "qdrant" or "://" in where.location:
        yield
        return
    path = Path(where.location)
    with locked(path / f"{where.name}.lance" if where.kind == "lance" else path):
        yield


def is_finished(reference: str | Path, source: VectorSource, stamp: Stamp) -> bool:
    """Return whether the target is whole already and from the same map and source: nothing is left to do.

    A run that was killed after its last rename looks like this; what it had no time to sweep up is removed.
    """
    where = place(reference)
    try:
        target = store(where).source(where)
    except TransshipError:
        return False
    whole = target.rows == source.rows and target.stamp.to_json() == stamp.to_json()
    target.close()
    if whole:
        store(where).sweep(where)
    return whole


__all__ = [
    "KINDS",
    "Columns",
    "RowBatch",
    "RowsDone",
    "Stamp",
    "Store",
    "StorePlace",
    "VectorSink",
    "VectorSource",
    "is_finished",
    "open_sink",
    "open_source",
    "place",
    "store",
    "written_alone",
]
