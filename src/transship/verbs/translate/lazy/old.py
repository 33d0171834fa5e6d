"""Searching an old index in place: whatever holds vectors and can be named or handed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from transship.errors import OptionError
from transship.verbs.translate.stores import place, store
from transship.verbs.translate.stores.array_index import ArrayIndex
from transship.verbs.translate.stores.faiss_file import FaissIndex
from transship.verbs.translate.stores.protocol import OldIndex


def open_index(given: Any) -> OldIndex:
    """Return an index to search: a store's name, a FAISS index, a LanceDB table, an array or (ids, array)."""
    if isinstance(given, str | Path):
        where = place(given)
        return store(where).open_index(where)
    if isinstance(given, tuple) and len(given) == 2:
        return ArrayIndex(list(given[0]), np.asarray(given[1]))
    if isinstance(given, np.ndarray):
        return ArrayIndex(list(range(len(given))), given)
    if hasattr(given, "ntotal"):
        return FaissIndex(given)
    if type(given).__module__.startswith("lancedb") and hasattr(given, "schema"):
        return open_index(f"{given._conn.uri}/{given.name}.lance")
    if hasattr(given, "search") and hasattr(given, "vectors"):
        index: OldIndex = given
        return index
    raise OptionError(
        f"{type(given).__name__} is no index", where="LazyIndex", fix="give a store's name, FAISS or an array"
    )
