"""The verb's steps as functions: what the command line calls, and nothing of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transship import __version__
from transship.errors import DataError, OutputError
from transship.numerics import MemoryBudget
from transship.verbs.translate.apply.moving import Moved, apply_map, map_bytes
from transship.verbs.translate.artifact import SavedMap, load_map, save_map
from transship.verbs.translate.engines import Engine
from transship.verbs.translate.fit.fitting import Direction, Fit, Relevance, check_map, fit_pairs
from transship.verbs.translate.fit.needs import checking_bytes, fitting_room
from transship.verbs.translate.fit.pairs import FEWEST, Pairs, read_pairs
from transship.verbs.translate.fit.quality import Quality
from transship.verbs.translate.stores import Columns, open_source, place

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fitted:
    """A map that was fitted and written, with the pairs it came from."""

    fit: Fit
    saved: SavedMap
    pairs: Pairs


def fit(
    old: str,
    new: str,
    folder: str | Path,
    *,
    columns: Columns | None = None,
    most: int | None = None,
    source_model: str = "",
    target_model: str = "",
    direction: Direction = "index",
    relevance: tuple[str, str, str | None] | None = None,
    seed: int = 0,
    force: bool = False,
    watch: Callable[[str], None] = lambda text: None,
    memory: MemoryBudget | None = None,
    **settings: Any,
) -> Fitted:
    """Join OLD and NEW by id, fit, and write the map with its quality into `folder`.

    With `memory` the kernel map, whose memory grows with the square of the pairs, is left out where it would
    not fit, and what does not fit without it is refused before any row is read. `relevance` names a table of
    judgements, the new model's query vectors and, if at hand, the old one's.
    """
    if Path(folder).exists() and not force:
        raise OutputError("exists already", where=str(folder), fix="choose another name, or pass --force")
    with _opened(old, columns) as first, _opened(new, columns) as second:
        models = [
            given or source.stamp.model for given, source in ((source_model, first), (target_model, second))
        ]
        if models[0] and models[0] == models[1]:
            raise DataError(
                f"both sides are of '{models[0]}'", where=f"{old} and {new}", fix="give vectors of two models"
            )
        if memory is not None and memory.limit is not None:
            settings["kernel_most"] = fitting_room(
                memory, first, second, most, settings.get("method", "auto")
            )
        watch("joining the pairs")
        pairs = read_pairs(first, second, most=most, seed=seed)
    judged = _relevance(*relevance, columns) if relevance is not None else None
    found = fit_pairs(
        pairs, direction=direction, relevance=judged, seed=seed, force=force, watch=watch, **settings
    )
    target = pairs.new if direction == "index" else pairs.old
    sides = models if direction == "index" else models[::-1]
    about = {
        "source": sides[0],
        "target": sides[1],
        "direction": direction,
        "unit_target": bool(np.allclose(np.linalg.norm(target, axis=1), 1.0, atol=1e-3)),
        "keep_mean": found.query_side.keep_mean if found.query_side is not None else True,
        "quality": found.quality(),
        "thresholds": [list(pair) for pair in found.thresholds],
        "pairs": {"old": old, "new": new, "count": len(pairs), "ids": found.translator.anchors_hash_},
        "seed": seed,
        "transship": __version__,
    }
    return Fitted(found, save_map(found.translator, folder, about, force=force), pairs)


def check(
    folder: str | Path,
    old: str,
    new: str,
    *,
    columns: Columns | None = None,
    most: int | None = None,
    k: int = 10,
    seed: int = 0,
    engine: Engine | None = None,
    memory: MemoryBudget | None = None,
) -> tuple[Quality, float, int]:
    """Measure a map on other pairs: quality, what the old index alone gives, and how many pairs."""
    saved = load_map(folder)
    with _opened(old, columns) as first, _opened(new, columns) as second:
        if memory is not None:
            needed = map_bytes(saved) + checking_bytes(first, second, most)
            memory.require(needed, "measuring the pairs", instead="" if most == FEWEST else "pass --pairs")
        pairs = read_pairs(first, second, most=most, seed=seed, engine=engine)
    direction: Direction = saved.about.get("direction", "index")
    widths = (pairs.old.shape[1], pairs.new.shape[1])
    if (widths if direction == "index" else widths[::-1]) != saved.widths:
        raise DataError(
            f"pairs are {widths[0]} and {widths[1]} wide, and the map goes from "
            f"{saved.widths[0]} to {saved.widths[1]}",
            where=str(folder),
            fix="give the models that the map was fitted on, old first",
        )
    quality, old_alone = check_map(saved.translator, pairs, direction=direction, k=k, seed=seed)
    return quality, old_alone, len(pairs)


def apply(
    folder: str | Path,
    reference: str,
    target: str,
    *,
    columns: Columns | None = None,
    memory: MemoryBudget | None = None,
    force: bool = False,
    engine: Engine | None = None,
) -> Iterator[Moved]:
    """Translate a store; a query map on a FAISS index gives an index that takes the new model's queries."""
    saved = load_map(folder)
    if saved.about.get("direction") == "query":
        yield from _query_side(saved, reference, target, force)
        return
    yield from apply_map(saved, reference, target, columns=columns, memory=memory, force=force, engine=engine)


def _query_side(saved: SavedMap, reference: str, target: str, force: bool) -> Iterator[Moved]:
    if place(reference).kind != "faiss" or place(target).kind != "faiss":
        raise DataError(
            "a query map leaves the rows as they are",
            where=str(saved.path),
            fix="use it in LazyIndex, or on a FAISS index",
        )
    if not hasattr(saved.translator, "coef_"):
        raise DataError(
            f"a {saved.translator.map_name} map is not linear",
            where=str(saved.path),
            fix="fit with --method ridge",
        )
    from transship.verbs.translate.stores.faiss_file import load_library, query_index

    goal = Path(place(target).location)
    if goal.exists() and not force:
        raise OutputError("exists already", where=target, fix="choose another name, or pass --force")
    faiss = load_library()
    with _opened(reference, None):
        index = faiss.read_index(place(reference).location)
    if index.d != saved.widths[1]:
        raise DataError(
            f"vectors are {index.d} wide and the map gives {saved.widths[1]}",
            where=reference,
            fix="use its map",
        )
    matrix, bias = query_weights(saved)
    draft = goal.with_name(f".{goal.name}.draft")
    faiss.write_index(query_index(index, matrix, bias), str(draft))
    draft.replace(goal)
    yield Moved(int(index.ntotal), int(index.ntotal))


def query_weights(saved: SavedMap) -> tuple[Array, Array]:
    """Return W and b of a linear query map, without the target's mean where that was better."""
    mean = 0.0 if saved.about.get("keep_mean", True) else saved.translator.target_mean_
    return saved.translator.coef_, saved.translator.intercept_ - mean


class _opened:  # noqa: N801 - reads as a word in `with`
    def __init__(self, reference: str, columns: Columns | None) -> None:
        self.source = open_source(reference, columns)

    def __enter__(self) -> Any:
        return self.source

    def __exit__(self, *error: object) -> None:
        self.source.close()


def _relevance(table: str, queries: str, old_queries: str | None, columns: Columns | None) -> Relevance:
    """Read judgements (query_id, doc_id, score) and the query vectors of one or both models."""
    import pyarrow.parquet as pq

    rows = pq.read_table(table).to_pydict()
    wanted = {"query_id", "doc_id", "score"}
    if not wanted <= set(rows):
        raise DataError(
            f"has no columns {', '.join(sorted(wanted))}", where=table, fix="give a table with these columns"
        )
    vectors = [_vectors(name, columns) for name in (queries, old_queries) if name]
    ids = list(vectors[0])
    if len(vectors) == 2:
        ids = [name for name in ids if name in vectors[1]]
    if not ids:
        raise DataError(
            "no query is on both sides", where=queries, fix="embed the same queries with both models"
        )
    numbers = {name: row for row, name in enumerate(ids)}
    grades: dict[int, dict[str, float]] = {}
    for query, document, score in zip(rows["query_id"], rows["doc_id"], rows["score"], strict=True):
        if str(query) in numbers:
            grades.setdefault(numbers[str(query)], {})[str(document)] = float(score)
    stacked = [np.stack([side[name] for name in ids]) for side in vectors]
    return Relevance(stacked[0], grades, stacked[1] if len(stacked) == 2 else None)


def _vectors(reference: str, columns: Columns | None) -> Mapping[str, Array]:
    with _opened(reference, columns) as source:
        return {
            str(name): row
            for batch in source.batches(4096)
            for name, row in zip(batch.ids, batch.vectors, strict=True)
        }


def summary(fitted: Fitted) -> dict[str, Any]:
    """Return what `--json` prints of a fit."""
    found = fitted.fit
    return {
        "map": fitted.saved.path,
        "hash": fitted.saved.hash,
        "chosen": found.chosen.name,
        "why": found.why,
        "pairs": found.pairs,
        "direction": found.direction,
        "candidates": [
            {
                "method": one.name,
                "restored": one.restored,
                "forecast": one.forecast.to_dict(),
                "held_out": one.held_out.to_dict(),
                "seconds": round(one.seconds, 3),
                "ndcg": one.ndcg,
                "fused": one.fused,
            }
            for one in found.candidates
        ],
        "old_alone": found.old_alone,
        "ndcg": {"native": found.ndcg_native, "old": found.ndcg_old},
        "wrong_pairs": [name for name, _ in found.suspects[:20]],
        "thresholds": [list(pair) for pair in found.thresholds],
        "query_side": None if found.query_side is None else json.loads(json.dumps(vars(found.query_side))),
        "advice": list(found.advice),
    }
