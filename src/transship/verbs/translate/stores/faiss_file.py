"""FAISS: an index file with ids; its provenance beside it in `NAME.json`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transship.atomic import atomic_files
from transship.errors import DataError, MissingError, OutputError
from transship.types import Array
from transship.verbs.translate.maps.vectors import unit_rows
from transship.verbs.translate.stores.numpy_file import (
    ID_BYTES,
    OneFileSink,
    OneFileSource,
    about_path,
    steady,
    sweep,
    unreadable,
)
from transship.verbs.translate.stores.protocol import RowBatch, Stamp, Store, StorePlace, VectorSource

# rows that a compressed index learns its codes from
TRAINING_ROWS = 200_000


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
        keys = self.ids[places] if self.by_id else places
        return np.stack([self.inner.reconstruct(int(key)) for key in keys])


def _inverted_ids(faiss: Any, inverted: Any) -> Array:
    """Return the ids of an inverted file, sorted."""
    lists, parts = inverted.invlists, [np.empty(0, np.int64)]
    for number in range(inverted.nlist):
        if size := lists.list_size(number):
            parts.append(faiss.rev_swig_ptr(lists.get_ids(number), size).copy())
    return np.sort(np.concatenate(parts))


class FaissSource(OneFileSource):
    """Vectors of an index that can give them back (flat, IVF flat, PQ as approximations), with their ids."""

    def __init__(self, place: StorePlace) -> None:
        faiss = load_library()
        super().__init__(place)
        try:
            self.index = faiss.read_index(str(self.path), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise unreadable("FAISS index", place) from error
        self.rows, self.width = int(self.index.ntotal), int(self.index.d)
        self.metric = int(self.index.metric_type)
        self.kind = index_kind(self.index)
        if not _exact(self.kind):
            self.note = f"rows are read as the index keeps them, approximately ({self.kind or 'compressed'})"
        self.kept = self._probe()

    def read(self, first: int, stop: int) -> RowBatch:
        return RowBatch(self.kept.ids[first:stop], self.kept.slice(first, stop - first))

    def all_ids(self) -> Array | None:
        return None if np.array_equal(self.kept.ids, np.arange(self.rows)) else self.kept.ids

    def close(self) -> None:
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


class FaissSink(OneFileSink):
    """Collects rows in a file, then makes an index of the kind and metric that the source had, with its ids.

    `index.faiss#FACTORY` asks for another kind, as `faiss.index_factory` spells it; rows of other stores come
    into a flat one.
    """

    def __init__(
        self, place: StorePlace, source: VectorSource, stamp: Stamp, width: int, force: bool
    ) -> None:
        """Find out what to make, before any row."""
        like = source if isinstance(source, FaissSource) else None
        self.empty = empty_index(place, width, like)
        inverted = load_library().try_extract_index_ivf(self.empty)
        if inverted is not None and source.rows < inverted.nlist:
            raise DataError(
                f"{source.rows:,} rows are too few for the {inverted.nlist:,} lists of the index",
                where=place.text,
                fix=f"name another kind, such as {place.location}#Flat",
            )
        super().__init__(place, source, stamp, width, force)

    def assemble(self, draft: Path, ids: Array | None) -> None:
        try:
            keys = np.arange(self.source.rows) if ids is None else np.asarray(ids, dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise DataError(
                "FAISS knows integer ids only",
                where=str(self.target),
                fix="write to Parquet, LanceDB or Qdrant",
            ) from error
        index = self.empty
        if not index.is_trained:
            step = max(1, self.source.rows // TRAINING_ROWS)
            index.train(np.ascontiguousarray(self.array[::step]))
        for first in range(0, self.source.rows, 65536):
            part = slice(first, min(first + 65536, self.source.rows))
            index.add_with_ids(np.ascontiguousarray(self.array[part]), np.ascontiguousarray(keys[part]))
        _write_index(index, draft)


class FaissIndex:
    """A FAISS index, searched by its own metric."""

    def __init__(self, index: Any, location: str = "") -> None:
        faiss = load_library()
        self.index, self.location, self.kept = index, location, KeptRows(index)
        self.places = {int(identity): row for row, identity in enumerate(self.kept.ids)}
        self.closer = -1.0 if index.metric_type == faiss.METRIC_L2 else 1.0

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def search(self, queries: Array, count: int) -> tuple[list[list[Any]], Array]:
        """Return the nearest rows; a distance counts as its negative.

        An inverted file may find fewer rows than asked for: their scores come first.
        """
        scores, ids = self.index.search(np.ascontiguousarray(unit_rows(queries)), count)
        return [[int(key) for key in row if key >= 0] for row in ids], self.closer * scores

    def vectors(self, ids: Sequence[Any]) -> Array:
        return self.kept.at(np.asarray([self.places[int(identity)] for identity in ids]))


def index_kind(index: Any) -> str:
    """Return what `faiss.index_factory` calls an index, without its ids; nothing where it has no name."""
    from faiss.contrib.factory_tools import reverse_index_factory  # an extra

    try:
        kind: str = reverse_index_factory(index)  # type: ignore[no-untyped-call]
    except (NotImplementedError, AttributeError, AssertionError):
        return ""
    return re.sub(r"^IDMap2?,", "", kind)


def empty_index(place: StorePlace, width: int, like: FaissSource | None) -> Any:
    """Return an index of the kind that a place asks for, or like another, flat without either."""
    faiss = load_library()
    kind = place.name or ("Flat" if like is None else like.kind)
    if not kind:
        raise DataError(
            "the old index is of a kind that cannot be made anew",
            where=place.text,
            fix=f"name a kind as faiss.index_factory does: {place.location}#IVF256,Flat",
        )
    metric = faiss.METRIC_INNER_PRODUCT if like is None else like.metric
    try:
        index = faiss.index_factory(width, kind, metric)
    except RuntimeError as error:
        raise DataError(
            f"FAISS makes no index '{kind}' of vectors {width} wide",
            where=place.text,
            fix=f"name another kind as faiss.index_factory does: {place.location}#IVF256,Flat",
        ) from error
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is None:
        return faiss.IndexIDMap2(index)
    before = None if like is None else faiss.try_extract_index_ivf(like.index)
    if before is not None:
        inverted.nprobe = before.nprobe
    return index


def _exact(kind: str) -> bool:
    return re.fullmatch(r"(IVF\w+,)?Flat|HNSW\d+", kind) is not None


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


def write_query_index(place: StorePlace, target: StorePlace, matrix: Array, bias: Array, force: bool) -> int:
    """Write the index at `place` so that it takes queries of the new model; return its rows."""
    faiss = load_library()
    goal = Path(target.location)
    with atomic_files(goal, about_path(goal).name, force=force) as folder:
        FaissSource(place).close()  # one clear error where there is none
        index = faiss.read_index(place.location)
        if index.d != matrix.shape[1]:
            raise DataError(
                f"vectors are {index.d} wide and the map gives {matrix.shape[1]}",
                where=place.text,
                fix="use its map",
            )
        _write_index(query_index(index, matrix, bias), folder / goal.name)
    return int(index.ntotal)


def _write_index(index: Any, file: Path) -> None:
    try:
        load_library().write_index(index, str(file))
    except RuntimeError as error:  # what the library says of a full or broken disk
        reason = str(error).rpartition("(")[2].rstrip(") ")
        raise OutputError(
            f"writing stopped ({reason})", where=file.name, fix="free some space, or choose another disk"
        ) from error


def load_library() -> Any:
    """Import FAISS, or say how to get it."""
    try:
        import faiss  # an extra
    except ImportError as error:
        raise MissingError(
            "FAISS is not installed", where="faiss", fix="pip install 'transship[faiss]'"
        ) from error
    return faiss


STORE = Store(
    steady(FaissSource),
    FaissSink,
    index=lambda place: FaissIndex(FaissSource(place).index, place.location),
    # the vectors, twice as the index grows, and the ids
    held_bytes=lambda rows, width: rows * (2 * 4 * width + ID_BYTES),
    sweep=sweep,
    write_queries=write_query_index,
)
