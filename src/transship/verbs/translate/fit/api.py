"""Fit a map on two stores, and measure one: the functions behind `transship translate fit` and `check`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transship import __version__
from transship.atomic import check_target
from transship.errors import DataError
from transship.numerics import MemoryBudget
from transship.progress import Progress, quiet
from transship.report import Block, Facts, KeyFigure, KeyFigures, Page, Section
from transship.verbs.translate.artifact import load_map, save_map
from transship.verbs.translate.engines import Engine
from transship.verbs.translate.fit.fitting import MapFit, check_pairs, fit_pairs
from transship.verbs.translate.fit.judgements import read_judgements
from transship.verbs.translate.fit.needs import checking_bytes, plan_fit
from transship.verbs.translate.fit.pairs import FEWEST, VectorPairs, read_pairs
from transship.verbs.translate.fit.quality import MapQuality
from transship.verbs.translate.fit.result import FittedMap
from transship.verbs.translate.fit.trials import FitSettings
from transship.verbs.translate.stores import Columns, VectorSource, open_source


@dataclass(frozen=True)
class JudgedFiles:
    """A table of judgements (query_id, doc_id, score), and the query vectors of the new and the old model."""

    table: str
    queries: str
    old_queries: str | None = None


@dataclass(frozen=True)
class MapCheck:
    """A map measured on other pairs: its quality, the untouched old index' recall, and how many pairs."""

    quality: MapQuality
    old_alone: float
    pairs: int

    def page(self) -> Page:
        """Return what `transship translate check` says."""
        quality = self.quality
        facts = {**quality.to_dict(), "old_alone": self.old_alone, "pairs": self.pairs}
        figures = [
            KeyFigure(
                f"recall@{quality.k}", f"{quality.recall:.3f}", f"old index alone {self.old_alone:.3f}"
            ),
            KeyFigure("own row found", f"{quality.twin_recall:.3f}"),
            KeyFigure("cosine", f"{quality.cosine:.3f}"),
        ]
        blocks: list[Block] = [Facts(facts, shown=False), KeyFigures(figures)]
        return Page("", f"on {self.pairs:,} pairs, document to document:", [Section("", blocks)])


def fit_map(
    old: str,
    new: str,
    folder: str | Path,
    settings: FitSettings | None = None,
    *,
    columns: Columns | None = None,
    judged: JudgedFiles | None = None,
    memory: MemoryBudget | None = None,
    progress: Progress = quiet,
) -> FittedMap:
    """Join OLD and NEW by id, fit, and write the map with its quality into `folder`.

    With `memory` a map whose memory grows with the square of the pairs is left out where it would not fit,
    and what does not fit without it is refused before any row is read.
    """
    settings = settings or FitSettings()
    check_target(folder, force=settings.force)
    with _opened(old, columns) as first, _opened(new, columns) as second:
        models = (settings.source_model or first.stamp.model, settings.target_model or second.stamp.model)
        if models[0] and models[0] == models[1]:
            raise DataError(
                f"both sides are of '{models[0]}'", where=f"{old} and {new}", fix="give vectors of two models"
            )
        plan = plan_fit(first, second, settings, memory)
        progress("join the pairs", 0, 1)
        pairs = read_pairs(first, second, most=settings.pairs, seed=settings.seed)
        progress("join the pairs", 1, 1)
    judgements = None
    if judged is not None:
        judgements = read_judgements(judged.table, judged.queries, judged.old_queries, columns)
    fit = fit_pairs(pairs, settings, plan=plan, judgements=judgements, progress=progress)
    about = _about(fit, pairs, models, (old, new), settings)
    return FittedMap(fit, save_map(fit.translator, folder, about, force=settings.force))


def _about(
    fit: MapFit, pairs: VectorPairs, models: tuple[str, str], names: tuple[str, str], settings: FitSettings
) -> dict[str, Any]:
    """Return what the map's file says of it."""
    target = pairs.sides(fit.direction)[1]
    source_model, target_model = models if fit.direction == "index" else models[::-1]
    count, ids = len(pairs), fit.translator.anchors_hash_
    return {
        "source": source_model,
        "target": target_model,
        "direction": fit.direction,
        "unit_target": bool(np.allclose(np.linalg.norm(target, axis=1), 1.0, atol=1e-3)),
        "keep_mean": fit.query_side.keep_mean if fit.query_side is not None else True,
        "quality": fit.quality(),
        "thresholds": [list(pair) for pair in fit.thresholds],
        "pairs": {"old": names[0], "new": names[1], "count": count, "ids": ids},
        "seed": settings.seed,
        "transship": __version__,
    }


def check_map(
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
) -> MapCheck:
    """Measure a map on other pairs."""
    saved = load_map(folder)
    with _opened(old, columns) as first, _opened(new, columns) as second:
        if memory is not None:
            needed = saved.translator.array_bytes + checking_bytes(first, second, most)
            memory.require(needed, "measuring the pairs", instead="" if most == FEWEST else "pass --pairs")
        pairs = read_pairs(first, second, most=most, seed=seed, engine=engine)
    source, target = pairs.sides(saved.direction)
    if (source.shape[1], target.shape[1]) != saved.widths:
        raise DataError(
            f"pairs are {pairs.old.shape[1]} and {pairs.new.shape[1]} wide, and the map goes from "
            f"{saved.widths[0]} to {saved.widths[1]}",
            where=str(folder),
            fix="give the models that the map was fitted on, old first",
        )
    quality, old_alone = check_pairs(saved.translator, pairs, direction=saved.direction, k=k, seed=seed)
    return MapCheck(quality, old_alone, len(pairs))


@contextlib.contextmanager
def _opened(reference: str, columns: Columns | None) -> Iterator[VectorSource]:
    source = open_source(reference, columns)
    try:
        yield source
    finally:
        source.close()
