"""Which column plays which part: by its usual name, or as the user names it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from transship.errors import DataError

# part → the names it usually has, the likeliest first
USUAL: dict[str, tuple[str, ...]] = {
    "id": ("id", "ids", "_id", "idx", "doc_id", "document_id", "uid", "key"),
    "text": (
        *("text", "sentence", "content", "document", "review", "question", "query", "utterance"),
        *("message", "comment", "body", "abstract", "description", "texts"),
    ),
    "image": ("image", "img", "images", "picture", "photo", "pixels"),
    "series": ("series", "signal", "time_series", "timeseries", "values", "sequence", "waveform"),
    "vector": ("vector", "embedding", "embeddings", "vectors", "emb", "vec", "features"),
    "array": ("array", "x", "input", "inputs", "data", "field", "arr_0", "features"),
    "label": ("label", "labels", "y", "target", "targets", "class", "category", "intent", "output", "score"),
    "label_name": ("label_name", "label_names", "label_text", "class_name"),
    "split": ("split", "set", "subset", "fold", "partition"),
}
# which second column goes with which first one
_PARTNERS = (
    ("text_a", "text_b"),
    ("text", "text_b"),
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)


def find_column(part: str, names: Sequence[str], given: str | None, *, where: str) -> str | None:
    """Return the column that plays `part`: `given` (an error when absent), else a usual name, else None."""
    if given is not None:
        if given in names:
            return given
        raise missing_column(given, names, where=where)
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[usual] for usual in USUAL[part] if usual in lower), None)


def need_column(part: str, names: Sequence[str], given: str | None, *, where: str) -> str:
    """Return the column that plays `part`, or refuse a table without one."""
    found = find_column(part, names, given, where=where)
    if found is not None:
        return found
    near = [name for name in names if difflib.get_close_matches(name.lower(), USUAL[part], n=1, cutoff=0.75)]
    hint = f"did you mean column='{near[0]}'?" if near else "name the column with column="
    raise DataError(f"no column reads as {part} ({_listed(names)})", where=where, fix=hint)


def find_pair(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the two text columns of a table of pairs, or None."""
    lower = {name.lower(): name for name in reversed(names)}
    return next(((lower[a], lower[b]) for a, b in _PARTNERS if a in lower and b in lower), None)


def missing_column(given: str, names: Sequence[str], *, where: str) -> DataError:
    """Return the error for a column that the user named and the table lacks."""
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    fix = f"did you mean '{near[0]}'?" if near else "name one of these"
    return DataError(f"there is no column '{given}' ({_listed(names)})", where=where, fix=fix)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"the columns are {shown}" if names else "it has no columns"
