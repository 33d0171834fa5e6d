"""FAISS: an index file with ids; its provenance beside it in `NAME.json`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transship.errors import DataError, MissingError, OutputError
from transship.verbs.translate.stores.numpy_file import RowFile, about_path
from transship.verbs.translate.stores.protocol import Array, Batch, Place, Source, Stamp, gone


class KeptRows:
    """The vectors that an index holds, by their place: `ids` [rows] names them in that order.

    Behind an IDMap places are the index's own keys. An inverted file may have been given ids itself: then
    they are its keys, and rows come in their order. A pre-transform is undone by the index (a PCA loses what
    it left out).
    """

    def __init__(self, index: Any) -> None:
        """Find the ids, and prepare the index for giving rows back."""
        faiss = load_library()
        mapped = hasattr(index, "id_map")
        self.inner = faiss.downcast_index(index.index if mapped else index)
        self.ids: Array = (
            faiss.vector_to_array(index.id_map).copy() if mapped else np.arange(int(index.ntotal))
        )
        self.by_id = False
        inverted = faiss.try_extract_index_ivf(self.inner)
        if inverted is None:
            return
        keys = _inverted_ids(faiss, inverted)
        if np.array_equal(keys, np.arange(len(keys))):
            inverted.make_direct_map()
        else:
            self.ids, self.by_id = keys, True
            inverted.set_direct_map_type(faiss.DirectMap.Hashtable)

    def slice(self, first: int, count: int) -> Array:
        """Return `count` rows from place `first` on."""
        if self.by_id:
            return self.at(np.arange(first, first + count))
        rows: Array = self.inner.reconstruct_n(first, count)
        return rows

    def at(self, places: Array) -> Array:
        """Return the rows at some places."""
        keys = self.ids[places] if self.by_id else places
        return np.stack([self.inner.reconstruct(int(key)) for key in keys])


def _inverted_ids(faiss: Any, inverted: Any) -> Array:
    """Return the ids of an inverted file, sorted."""
    lists, parts = inverted.invlists, [np.empty(0, np.int64)]
    for number in range(inverted.nlist):
        if size := lists.list_size(number):
            parts.append(faiss.rev_swig_ptr(lists.get_ids(number), size).copy())
    return np.sort(np.concatenate(parts))


class FaissSource:
    """Vectors of an index that can give them back (flat, IVF flat, PQ as approximations), with their ids."""

    def __init__(self, place: Place) -> None:
        """Read the index."""
        faiss = load_library()
        self.place, self.path = place, Path(place.location)
        if not self.path.is_file():
            raise MissingError("there is no such file", where=place.text, fix="check the path")
        try:
            self.index = faiss.read_index(str(self.path), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise DataError(
                "is not a readable FAISS index", where=place.text, fix="write it again"
            ) from error
        self.rows, self.width, self.metric = (
            int(self.index.ntotal),
            int(self.index.d),
            int(self.index.metric_type),
        )
        self.stamp = Stamp.from_json(
            about_path(self.path).read_text(encoding="utf-8") if about_path(self.path).is_file() else None
        )
        self.kept = self._probe()
        self.ids = self.kept.ids

    def fingerprint(self) -> str:
        """Return size, time and shape of the file."""
        status = self.path.stat()
        return f"{status.st_size}-{status.st_mtime_ns}-{self.rows}x{self.width}"

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield rows from `start` on."""
        for first in range(start, self.rows, size):
            if not self.path.is_file():
                raise gone(self.place.text, first, FileNotFoundError("the file was removed"))
            count = min(size, self.rows - first)
            yield Batch(self.ids[first : first + count], self.kept.slice(first, count))

    def close(self) -> None:
        """Drop the index."""
        del self.index

    def _probe(self) -> KeptRows:
        try:
            kept = KeptRows(self.index)
            if self.rows:
                kept.slice(0, 1)
        except RuntimeError as error:
            raise DataError(
                f"an index of kind {type(self.index).__name__} does not give its vectors back",
                where=self.place.text,
                fix="translate the vectors that it was built from",
            ) from error
        return kept


class FaissSink:
    """Collects rows in a file, then writes a flat index with the same metric and ids."""

    def __init__(self, place: Place, source: Source, stamp: Stamp, width: int, force: bool) -> None:
        """Open or continue the row file."""
        self.target, self.stamp, self.source = Path(place.location), stamp, source
        if self.target.exists() and not force:
            raise OutputError("exists already", where=place.text, fix="choose another name, or pass --force")
        self.rows = RowFile(self.target, source.rows, width, stamp.to_json(), force)
        self.width = width

    @property
    def done(self) -> int:
        """Rows that are safe."""
        return self.rows.done

    def write(self, batch: Batch, vectors: Array) -> None:
        """Add rows."""
        self.rows.write(vectors)

    def finish(self) -> None:
        """Build the index and rename it into place."""
        faiss = load_library()
        metric = getattr(self.source, "metric", faiss.METRIC_INNER_PRODUCT)
        index = faiss.IndexIDMap2(faiss.IndexFlat(self.width, metric))
        for first in range(0, self.source.rows, 65536):
            part = slice(first, min(first + 65536, self.source.rows))
            index.add_with_ids(np.ascontiguousarray(self.rows.array[part]), self._ids(part))
        draft = self.target.with_name(f".{self.target.name}.draft")
        faiss.write_index(index, str(draft))
        about_path(self.target).write_text(self.stamp.to_json(), encoding="utf-8")
        os.replace(draft, self.target)
        self.rows.remove()

    def close(self) -> None:
        """Nothing to do: what is noted is safe."""

    def _ids(self, part: slice) -> Array:
        if isinstance(self.source, FaissSource):
            return np.ascontiguousarray(self.source.ids[part], dtype=np.int64)
        found: list[Any] = []
        for batch in self.source.batches(8192, part.start):
            found.extend(batch.ids)
            if len(found) >= part.stop - part.start:
                break
        try:
            return np.asarray(found[: part.stop - part.start], dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise DataError(
                "FAISS knows integer ids only",
                where=str(self.target),
                fix="write to Parquet, LanceDB or Qdrant",
            ) from error


def query_index(index: Any, matrix: Array, bias: Array) -> Any:
    """Return an IndexPreTransform: it takes queries of the new model and searches the untouched old index.

    The linear transform copies `matrix` [query width, index width] and `bias`; the old index is kept alive by
    the one returned.
    """
    faiss = load_library()
    transform = faiss.LinearTransform(matrix.shape[0], matrix.shape[1], True)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix.T, dtype=np.float32).ravel(), transform.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(bias, dtype=np.float32), transform.b)
    transform.is_trained = True
    # the Python constructor keeps both alive; C++ alone would hold pointers to what Python may free
    return faiss.IndexPreTransform(transform, index)


def open_source(place: Place) -> FaissSource:
    """Open an index for reading."""
    return FaissSource(place)


def open_sink(place: Place, source: Source, stamp: Stamp, *, width: int, force: bool) -> FaissSink:
    """Open an index for writing."""
    return FaissSink(place, source, stamp, width, force)


def load_library() -> Any:
    """Import FAISS, or say how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise MissingError(
            "FAISS is not installed", where="faiss", fix="pip install 'transship[faiss]'"
        ) from error
    return faiss
