"""Lazy migration: search the old index as it is, rescore a few candidates, move them as they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from transship.errors import DataError, OptionError
from transship.types import Array
from transship.verbs.translate.artifact import SavedMap, load_map
from transship.verbs.translate.fit.judgements import fuse
from transship.verbs.translate.lazy.old import open_index
from transship.verbs.translate.lazy.rows import open_rows
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.nearest import unit_rows
from transship.verbs.translate.stores import (
    RowsDone,
    Stamp,
    VectorSource,
    is_finished,
    open_sink,
    open_source,
)
from transship.verbs.translate.stores.protocol import NewRows, OldIndex
from transship.verbs.translate.vectors import plain_id

Embed = Callable[[Sequence[str]], Array]
Rescore = Literal["auto", "translate", "embed", "none"]
WRITE_ROWS = 4096


@dataclass(frozen=True)
class Hit:
    """One result: its id, its score in the new space, and how that score came about."""

    id: Any
    score: float
    by: Literal["native", "translated", "old"]


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
        self.embed = _encoder(embed) if isinstance(embed, str) else embed
        self.texts, self.candidates = texts, candidates
        self.model = model or (embed if isinstance(embed, str) else "")
        self.native: NewRows = open_rows(self.index, write_back, self.model)
        # (slope, offset) that brings scores of translated rows to those of native ones
        self.calibration = (1.0, 0.0)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.index)

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
        """Return the k best rows for one query vector of the new model.

        `old_query` is the same query by the old model, where it still runs: better candidates, no map.
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
        """Return the k best rows of every query vector of the new model, [queries, width]."""
        new = unit_rows(np.atleast_2d(np.asarray(queries)))
        old = np.asarray(old_queries, dtype=np.float32) if old_queries is not None else self._to_old(new)
        count = min(candidates or self.candidates, len(self.index))
        ids, scores = self.index.search(old, count)
        moved_ids, moved_scores = self.native.search(new, k)
        way = self._way(rescore)
        results = []
        for row in range(len(new)):
            hits = self._rescore(new[row], ids[row], scores[row], way)
            candidates_of_old = {hit.id for hit in hits}
            if way != "none":
                known = zip(moved_ids[row], moved_scores[row], strict=True)
                hits += [
                    Hit(name, float(score), "native")
                    for name, score in known
                    if name not in candidates_of_old
                ]
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
        """Return the k best of all rows by z(translated score) + z(old score): for when texts are gone."""
        if self.translator is None:
            raise OptionError("has no translator", where="LazyIndex", fix="pass the map old → new")
        ids, old_scores = self.index.search(np.asarray(old_query, dtype=np.float32)[None], len(self.index))
        new = self._translated(list(ids[0])) @ unit_rows(np.asarray(query)[None])[0]
        scores = fuse(new, old_scores[0][: len(ids[0])], weight)
        order = np.argsort(-scores, kind="stable")[:k]
        return [Hit(ids[0][row], float(scores[row]), "translated") for row in order]

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
            return [
                Hit(identity, float(score), "native")
                for identity, score in zip(ids, self.move(ids) @ query, strict=True)
            ]
        if way == "none":
            scored = zip(ids, scores[: len(ids)], strict=True)
            return [Hit(identity, float(score), "old") for identity, score in scored]
        known = [identity for identity in ids if identity in self.native]
        others = [identity for identity in ids if identity not in self.native]
        hits = []
        if known:
            scored = zip(known, self.native.many(known) @ query, strict=True)
            hits = [Hit(identity, float(score), "native") for identity, score in scored]
        if others:
            slope, offset = self.calibration
            moved = slope * (self._translated(others) @ query) + offset
            hits += [
                Hit(identity, float(score), "translated")
                for identity, score in zip(others, moved, strict=True)
            ]
        return hits

    def _translated(self, ids: Sequence[Any]) -> Array:
        if self.translator is None:
            raise OptionError("has no translator", where="LazyIndex", fix="pass the map old → new")
        return unit_rows(self.translator.transform(self.index.vectors(ids)))


def _unpack(given: Translator | SavedMap | str | Path | None) -> tuple[Translator | None, dict[str, Any]]:
    if given is None or isinstance(given, Translator):
        return given, {}
    saved = given if isinstance(given, SavedMap) else load_map(given)
    return saved.translator, dict(saved.about)


def _encoder(model: str) -> Embed:
    from transship.activations.models import load_model
    from transship.activations.readout import features
    from transship.data import find_model

    loaded = load_model(str(find_model(model)), name=model)
    return lambda texts: np.asarray(features(loaded, list(texts)))
