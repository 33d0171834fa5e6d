"""Lazy migration: search the old index as it is, rescore a few candidates, move them as they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from transship.errors import DataError, OptionError
from transship.types import Array
from transship.verbs.translate.embed import Encoder, ReadyEncoder
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.maps.saved import SavedMap, load_map
from transship.verbs.translate.maps.vectors import fuse, plain_id, unit_rows
from transship.verbs.translate.stores import (
    RowsDone,
    Stamp,
    VectorSource,
    is_finished,
    open_sink,
    open_source,
    place,
    store,
)
from transship.verbs.translate.stores.faiss_file import FaissIndex
from transship.verbs.translate.stores.index import ArrayIndex, MemoryRows, NewRows, open_rows
from transship.verbs.translate.stores.protocol import OldIndex

Embed = Callable[[Sequence[str]], Array]
Origin = Literal["native", "translated", "old"]
Rescore = Literal["auto", "translate", "embed", "none"]
WRITE_ROWS = 4096


@dataclass(frozen=True)
class Hit:
    """One result: its id, its score in the new space, and how that score came about."""

    id: Any
    score: float
    by: Origin


class TextLookup(Protocol):
    """Gives the texts of ids: a mapping, or anything with `__getitem__`."""

    def __getitem__(self, identity: Any) -> str:
        """Return the text of one id."""


class LazyIndex:
    """An index of an old model that answers queries of a new one, and moves over as it is used.

    A query finds candidates in the untouched old index: through the old encoder's own query vector where it
    still runs, else through the query map (new → old). The candidates are then scored in the new space: by
    vectors of the new model where they are known, by embedding their texts and keeping the result
    (`embed`, `texts`), or by their translated vectors. Rows that have moved are candidates of every query.
    Native and translated rows stand in one ranking; translated scores are calibrated so that neither kind is
    favoured. With `write_back` new vectors go into a store beside the old one, and `finish` moves the rest.

    Attributes:
        native: the rows of the new model so far.
    """

    def __init__(
        self,
        old_index: Any,
        translator: Translator | SavedMap | str | Path | None = None,
        *,
        embed: Embed | str | None = None,
        texts: TextLookup | None = None,
        query_map: Translator | SavedMap | str | Path | None = None,
        keep_mean: bool | None = None,
        candidates: int = 100,
        write_back: str | Path | bool | None = None,
        model: str = "",
    ) -> None:
        """Open the index.

        Args:
            old_index: a store's name, a FAISS index, an array, (ids, array), a LanceDB table, or an OldIndex.
            translator: index map (old → new) for rescoring by translated vectors.
            embed: the new encoder: a function from texts to vectors, or a model's name.
            texts: texts by id, for `embed`.
            query_map: map new → old for queries, when the old encoder is gone; by default the translator's
                own way back.
            keep_mean: whether a translated query keeps the old mean; by default what the map's file says.
            candidates: how many rows a query fetches and rescores.
            write_back: keeps the new vectors: for Qdrant and LanceDB the name of a second collection or
                table with the same ids and payloads, else a folder; True adds `-new` to the old name. Without
                it they live as long as this object.
            model: the new model's name, kept with the rows; `embed`'s where that is a name.
        """
        self.reference = str(old_index) if isinstance(old_index, str | Path) else ""
        self.index: OldIndex = open_index(old_index)
        self.translator, _ = _unpack(translator)
        self.query_map, about = _unpack(query_map)
        self.keep_mean = keep_mean if keep_mean is not None else bool(about.get("keep_mean", True))
        self.embed = Encoder(embed, purpose="document").ready() if isinstance(embed, str) else embed
        self.ask = self.embed.asking() if isinstance(self.embed, ReadyEncoder) else self.embed
        self.texts, self.candidates = texts, candidates
        self.model = model or (embed if isinstance(embed, str) else "")
        self.native: NewRows = open_rows(self.index, write_back, self.model)
        # rows by the map, in memory, as far as `fused` has asked for them
        self._by_map = MemoryRows()
        # (slope, offset) that brings scores of translated rows to those of native ones
        self.calibration = (1.0, 0.0)

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        """Return what is searched, how far it has moved, and by what."""
        ways = {
            "translator": self.translator and type(self.translator).__name__,
            "query_map": self.query_map and type(self.query_map).__name__,
            "embed": self.embed and (self.model or "a function"),
        }
        parts = [
            self.reference or type(self.index).__name__,
            f"{len(self):,} rows",
            f"{self.moved:.0%} moved",
        ]
        return f"LazyIndex({', '.join([*parts, *(f'{role}={way}' for role, way in ways.items() if way)])})"

    @property
    def moved(self) -> float:
        """Share of rows whose vectors are of the new model by now."""
        return len(self.native) / max(1, len(self.index))

    def search(
        self,
        query: Any,
        k: int = 10,
        *,
        old_query: Any = None,
        candidates: int | None = None,
        rescore: Rescore = "auto",
    ) -> list[Hit]:
        """Return the k best rows for one query: a vector of the new model, or a text where `embed` is given.

        A text has the new model's own words for queries before it. `old_query` is the same query by the old
        model, where it still runs: better candidates, no map.
        """
        return self.search_many(
            np.asarray(query)[None],
            k,
            old_queries=None if old_query is None else np.asarray(old_query)[None],
            candidates=candidates,
            rescore=rescore,
        )[0]

    def search_many(
        self,
        queries: Any,
        k: int = 10,
        *,
        old_queries: Any = None,
        candidates: int | None = None,
        rescore: Rescore = "auto",
    ) -> list[list[Hit]]:
        """Return the k best rows of every query: vectors of the new model, [queries, width], or texts."""
        asked = np.asarray(queries)
        if asked.dtype.kind in "UT":
            if self.ask is None:
                raise OptionError("has no encoder for texts", where="LazyIndex", fix="pass embed, or vectors")
            asked = np.asarray(self.ask([str(text) for text in asked]))
        new = unit_rows(np.atleast_2d(asked))
        old = np.asarray(old_queries, dtype=np.float32) if old_queries is not None else self._to_old(new)
        count = min(candidates or self.candidates, len(self.index))
        ids, scores = self.index.search(old, count)
        moved_ids, moved_scores = self.native.search(new, k)
        way = self._way(rescore)
        results = []
        for row in range(len(new)):
            hits = self._rescore(new[row], ids[row], scores[row], way)
            if way != "none":
                candidates_of_old = {hit.id for hit in hits}
                moved = _hits(moved_ids[row], moved_scores[row], "native")
                hits += [hit for hit in moved if hit.id not in candidates_of_old]
            results.append(sorted(hits, key=lambda hit: -hit.score)[:k])
        return results

    def move(self, ids: Sequence[Any]) -> Array:
        """Embed the texts of `ids` with the new model, keep the vectors, and return them."""
        if self.embed is None or self.texts is None:
            raise OptionError("has no encoder and texts", where="LazyIndex", fix="pass embed and texts")
        unknown = [identity for identity in ids if identity not in self.native]
        if unknown:
            try:
                texts = [self.texts[identity] for identity in unknown]
            except (KeyError, IndexError) as error:
                raise DataError(
                    f"has no text of id {error}", where="texts", fix="give the texts of all ids"
                ) from error
            empty = [name for name, text in zip(unknown, texts, strict=True) if not (text or "").strip()]
            if empty:
                raise DataError(f"the text of id {empty[0]!r} is empty", where="texts", fix="give all texts")
            self.native.add(unknown, unit_rows(np.asarray(self.embed(texts))))
        return self.native.many(ids)

    def finish(self, target: str | Path | None = None, *, part: int = 256) -> Iterator[RowsDone]:
        """Move all rows that have not moved yet, `part` at a time; stopped and called again, it goes on.

        A second collection or table is whole then. With `target`, a store of the new vectors with all other
        columns of the old one is written as well.
        """
        if not self.reference:
            raise OptionError("an index in memory has no rows to read", where="finish", fix="name a store")
        source = open_source(self.reference)
        try:
            yield RowsDone(len(self.native), source.rows)
            for batch in source.batches(part):
                ids = [plain_id(identity) for identity in batch.ids]
                if any(identity not in self.native for identity in ids):
                    self.move(ids)
                    yield RowsDone(len(self.native), source.rows)
            if target is not None:
                yield from self._write(source, str(target))
        finally:
            source.close()

    def _write(self, source: VectorSource, target: str) -> Iterator[RowsDone]:
        stamp = Stamp(self.model, source=source.fingerprint())
        if is_finished(target, source, stamp):
            return
        first = plain_id(next(iter(source.batches(1))).ids[0])
        sink = open_sink(target, source, stamp, width=self.native.many([first]).shape[1])
        try:
            for batch in source.batches(WRITE_ROWS, sink.done):
                sink.write(batch, self.native.many([plain_id(identity) for identity in batch.ids]))
                yield RowsDone(len(self.native), source.rows)
            sink.finish()
        finally:
            sink.close()

    def calibrate(self, queries: Any, *, sample: int = 500) -> tuple[float, float]:
        """Fit the scores of translated rows to those of native ones, on rows of which both are known.

        A translated row without its variance restored scores too high; with it, nearly right. Returns slope
        and offset, which `search` applies to translated scores from then on.
        """
        if self.translator is None or len(self.native) < 20:
            raise DataError(
                f"{len(self.native)} native rows",
                where="calibrate",
                fix="move at least 20 rows, and give a translator",
            )
        ids = self.native.some(sample)
        asked, native, translated = (
            unit_rows(np.asarray(queries)),
            self.native.many(ids),
            self._translated(ids),
        )
        left, right = (asked @ translated.T).ravel(), (asked @ native.T).ravel()
        slope = float(right.std() / max(left.std(), 1e-12))
        self.calibration = (slope, float(right.mean() - slope * left.mean()))
        return self.calibration

    def fused(self, query: Any, old_query: Any, k: int = 10, *, weight: float = 0.5) -> list[Hit]:
        """Return the k best of all rows by z(translated score) + z(old score): for when texts are gone.

        Rows are translated once and kept in memory, [rows, width] in float32.
        """
        ids, old_scores = self.index.search(np.asarray(old_query, dtype=np.float32)[None], len(self.index))
        near = list(ids[0])
        if unknown := [identity for identity in near if identity not in self._by_map]:
            self._by_map.add(unknown, self._translated(unknown))
        new = self._by_map.many(near) @ unit_rows(np.asarray(query)[None])[0]
        scores = fuse(new, old_scores[0][: len(near)], weight)
        order = np.argsort(-scores, kind="stable")[:k]
        return [Hit(near[row], float(scores[row]), "translated") for row in order]

    # -- inside --------------------------------------------------------------------------------------------

    def _to_old(self, queries: Array) -> Array:
        """Return queries of the new model in the old space."""
        if self.query_map is not None:
            to_old = self.query_map.transform if self.keep_mean else self.query_map.direction
            moved = to_old(queries)
        elif self.translator is not None:
            try:
                moved = self.translator.inverse_transform(queries)
            except ValueError as error:
                raise OptionError(
                    f"the map cannot bring queries into the old space ({error})",
                    where="LazyIndex",
                    fix="pass old_query, or a query_map (`transship translate fit --direction query`)",
                ) from error
        else:
            raise OptionError(
                "needs the old encoder's query or a map",
                where="LazyIndex",
                fix="pass old_query, query_map or translator",
            )
        return np.asarray(moved, dtype=np.float32)

    def _way(self, rescore: Rescore) -> Rescore:
        if rescore != "auto":
            return rescore
        if self.embed is not None and self.texts is not None:
            return "embed"
        return "translate" if self.translator is not None else "none"

    def _rescore(self, query: Array, ids: Sequence[Any], scores: Array, way: Rescore) -> list[Hit]:
        if way == "embed":
            return _hits(ids, self.move(ids) @ query, "native")
        if way == "none":
            return _hits(ids, scores[: len(ids)], "old")
        known = [identity for identity in ids if identity in self.native]
        others = [identity for identity in ids if identity not in self.native]
        hits = _hits(known, self.native.many(known) @ query, "native") if known else []
        if others:
            slope, offset = self.calibration
            hits += _hits(others, slope * (self._translated(others) @ query) + offset, "translated")
        return hits

    def _translated(self, ids: Sequence[Any]) -> Array:
        if self.translator is None:
            raise OptionError("has no translator", where="LazyIndex", fix="pass the map old → new")
        return unit_rows(self.translator.transform(self.index.vectors(ids)))


def _hits(ids: Sequence[Any], scores: Array, by: Origin) -> list[Hit]:
    return [Hit(identity, float(score), by) for identity, score in zip(ids, scores, strict=True)]


def _unpack(given: Translator | SavedMap | str | Path | None) -> tuple[Translator | None, dict[str, Any]]:
    if given is None or isinstance(given, Translator):
        return given, {}
    saved = given if isinstance(given, SavedMap) else load_map(given)
    return saved.translator, dict(saved.about)


def open_index(given: Any) -> OldIndex:
    """Return an index to search: a store's name, a FAISS index, a LanceDB table, an array or (ids, array)."""
    if isinstance(given, str | Path):
        where = place(given)
        return store(where).index(where)
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
