"""Pairs: the same ids in two stores, joined, checked, and searched for rows that do not belong together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from transship.errors import DataError
from transship.numerics import chunks, derive_seed
from transship.types import Array
from transship.verbs.translate.engines import Engine, LocalEngine
from transship.verbs.translate.maps.vectors import check_rows, plain_id, unit_rows
from transship.verbs.translate.settings import FEWEST, Direction
from transship.verbs.translate.stores import RowBatch, VectorSource
from transship.verbs.translate.stores.protocol import SplitSource

# a row whose own partner ranks beyond this share of all partners, and beyond this number of them, is taken
# for a wrong pair: a map of some 100 pairs is so weak that right partners rank 5th to 25th
RANK_SHARE, RANK_LEAST = 0.05, 25
# rows read at a time, and rows that a worker of an engine reads in one piece
BATCH, PART_ROWS = 8192, 65536


@dataclass(frozen=True)
class VectorPairs:
    """Paired rows.

    Attributes:
        ids: one per pair.
        old: vectors of the old model, [pairs, source].
        new: vectors of the new model, [pairs, target].
        only_old: rows of the old store without a partner.
        only_new: rows of the new store without a partner.
    """

    ids: list[Any]
    old: Array
    new: Array
    only_old: int = 0
    only_new: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Array) -> VectorPairs:
        return VectorPairs([self.ids[i] for i in index], self.old[index], self.new[index])

    def draw(self, most: int | None, seed: int) -> VectorPairs:
        """Return at most so many pairs, drawn by seed, in their order."""
        if most is None or most >= len(self):
            return self
        rng = np.random.default_rng(derive_seed(seed, "pairs"))
        drawn = self.take(np.sort(rng.choice(len(self), most, replace=False)))
        return replace(drawn, only_old=self.only_old, only_new=self.only_new)

    def sides(self, direction: Direction) -> tuple[Array, Array]:
        """Return the rows to map and what they should become."""
        return (self.old, self.new) if direction == "index" else (self.new, self.old)

    def split(self, share: float, seed: int) -> tuple[VectorPairs, VectorPairs]:
        """Return two parts, drawn by seed: the first without and the second with `share` of the pairs."""
        order = np.random.default_rng(derive_seed(seed, "held out")).permutation(len(self))
        cut = len(self) - max(1, round(share * len(self)))
        return self.take(np.sort(order[:cut])), self.take(np.sort(order[cut:]))


def read_pairs(
    old: VectorSource,
    new: VectorSource,
    *,
    most: int | None = None,
    seed: int = 0,
    engine: Engine | None = None,
) -> VectorPairs:
    """Join two stores by id; the smaller is read whole, the larger is streamed past it.

    Duplicated ids, vectors that are not finite, and too few partners are refused. With `most`, that many
    pairs are drawn by seed. The workers of an `engine` read Parquet; the pairs are the same.
    """
    engine = engine or LocalEngine()
    small, large = (old, new) if old.rows <= new.rows else (new, old)
    first_ids, first = _read(small, None, engine)
    places = {identity: row for row, identity in enumerate(first_ids)}
    second_ids, second = _read(large, places, engine)
    if not second_ids:
        raise DataError(
            f"none of {small.rows:,} and {large.rows:,} ids occur on both sides "
            f"(such as {first_ids[0]!r} and {_example(large)!r})",
            where=f"{old.place.text} and {new.place.text}",
            fix="give stores with the same ids, or name the id column with --id-column",
        )
    if len(second_ids) < FEWEST:
        raise DataError(
            f"only {len(second_ids)} ids occur on both sides, and a map needs {FEWEST} or more",
            where=f"{old.place.text} and {new.place.text}",
            fix="embed more of the same texts with both models",
        )
    order = np.asarray([places[identity] for identity in second_ids])
    # the pairs come in the order of the smaller store, whichever side that is
    back = np.argsort(order, kind="stable")
    sides = {id(small): first[order[back]], id(large): second[back]}
    ids = [second_ids[i] for i in back]
    pairs = VectorPairs(ids, sides[id(old)], sides[id(new)], old.rows - len(ids), new.rows - len(ids))
    check_rows(pairs.old, old.place.text, ids)
    check_rows(pairs.new, new.place.text, ids)
    return pairs.draw(most, seed)


def reading_bytes(old: VectorSource, new: VectorSource) -> int:
    """Return what joining takes at most: both sides of every pair, twice while put together, and the ids."""
    most = min(old.rows, new.rows)
    return most * (2 * 4 * (old.width + new.width) + 600)


def _read(source: VectorSource, wanted: Mapping[Any, int] | None, engine: Engine) -> tuple[list[Any], Array]:
    """Return ids and vectors of the rows that are wanted, in the order of the store."""
    pieces: Iterable[tuple[list[Any], Array]]
    if engine.parallel and isinstance(source, SplitSource):
        parts = [range(part.start, part.stop) for part in chunks(source.rows, PART_ROWS)]
        keys = None if wanted is None else frozenset(wanted)
        by_number = dict(engine.run(pick_part, (source, keys), parts))
        pieces = [by_number[number] for number in range(len(parts))]
    else:
        pieces = (pick(batch, wanted) for batch in source.batches(BATCH))
    ids: list[Any] = []
    known: set[Any] = set()
    rows: list[Array] = []
    for names, vectors in pieces:
        for name in names:
            if name in known:
                raise DataError(
                    f"the id {name!r} occurs more than once",
                    where=source.place.text,
                    fix="remove the duplicates, or name another --id-column",
                )
            known.add(name)
        ids += names
        rows.append(vectors)
    return ids, np.concatenate(rows) if rows else np.empty((0, source.width), np.float32)


def pick(batch: RowBatch, wanted: Container[Any] | None) -> tuple[list[Any], Array]:
    """Return ids and vectors of the rows of a batch that are wanted."""
    names = [_plain(identity) for identity in batch.ids]
    rows = [i for i, name in enumerate(names) if wanted is None or name in wanted]
    return [names[row] for row in rows], np.asarray(batch.vectors[rows], dtype=np.float32)


def pick_part(shared: tuple[SplitSource, frozenset[Any] | None], part: range) -> tuple[list[Any], Array]:
    """Return what is wanted of some rows, in whatever process this is."""
    source, wanted = shared
    pieces = [pick(batch, wanted) for batch in source.batches(BATCH, part.start, part.stop)]
    return [name for names, _ in pieces for name in names], np.concatenate([rows for _, rows in pieces])


def _plain(identity: Any) -> Any:
    """Return an id as its text, so that 7 of one store meets "7" of another."""
    return str(plain_id(identity))


def _example(source: VectorSource) -> Any:
    return _plain(next(iter(source.batches(1))).ids[0])


@dataclass(frozen=True)
class Pairing:
    """Which pairs look wrong.

    Attributes:
        ranks: per pair, how many partners of others are nearer to its prediction than its own.
        wrong: numbers of the pairs whose rank passes the limit.
        limit: 5 % of all, or 25.
    """

    ranks: Array
    wrong: Array
    limit: float

    @property
    def share(self) -> float:
        """Share of pairs that look wrong."""
        return len(self.wrong) / len(self.ranks)

    @property
    def shuffled(self) -> bool:
        """Whether the list looks as if it were in the wrong order: then chance alone decides the ranks."""
        return self.share > 0.5 * (1.0 - self.limit / len(self.ranks))


def find_wrong_pairs(predicted: Array, actual: Array) -> Pairing:
    """Rank each pair's own partner among all partners, by centred cosine with a prediction that never saw it.

    A right pair's partner is among the first few; a wrong pair's is anywhere, so 95 % of them pass the limit
    of 5 % (a smaller share among fewer than 500 pairs, where the limit is 25).
    """
    left, right = (unit_rows(rows - rows.mean(0)) for rows in (predicted, actual))
    own = (left * right).sum(1)
    ranks = np.empty(len(left), dtype=np.int64)
    for start in range(0, len(left), 1024):
        part = slice(start, start + 1024)
        # the own partner is not nearer than itself; rounding must not make it so
        scores = left[part] @ right.T
        scores[np.arange(len(scores)), np.arange(part.start, part.start + len(scores))] = -np.inf
        ranks[part] = (scores > own[part, None]).sum(1)
    limit = max(RANK_SHARE * len(left), RANK_LEAST)
    return Pairing(ranks, np.flatnonzero(ranks > limit), limit)
