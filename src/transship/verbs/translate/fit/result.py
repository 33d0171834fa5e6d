"""A fitted map and what there is to say of it: what it is worth, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from transship.report import (
    Block,
    Column,
    Facts,
    Figure,
    KeyFigure,
    KeyFigures,
    Page,
    Provenance,
    Section,
    Table,
    Text,
    figures,
    library_versions,
)
from transship.types import Array
from transship.verbs.translate.fit.pairs import Pairing, VectorPairs
from transship.verbs.translate.fit.quality import MapQuality
from transship.verbs.translate.fit.steps import MapTrial
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.maps.saved import SavedMap
from transship.verbs.translate.maps.vectors import neighbours, unit_rows
from transship.verbs.translate.settings import Direction

# points of a projection, rows of a distribution: what a browser draws at once
POINTS = 400


@dataclass(frozen=True)
class QuerySide:
    """A query map (new → old) with and without the target's mean: recall against the old and new model."""

    with_mean: tuple[float, float]
    without_mean: tuple[float, float]

    @property
    def keep_mean(self) -> bool:
        """Whether the mean helps to imitate the new model on the old index."""
        return self.with_mean[1] >= self.without_mean[1]


@dataclass(frozen=True)
class MapFit:
    """What came out of fitting: the map, why this one, and every figure to see before using it.

    Attributes:
        chosen: the trial that won; its map was fitted without the pairs `held`.
        translator: the map, fitted on all pairs.
        why: the reason for the choice.
        trials: every map that was tried.
        left_out: maps that were not, each as one sentence.
        old_alone: recall of the untouched old index.
        pairing: which pairs look wrong.
        thresholds: score of the old space, score of the new one that is as selective.
        advice: what to do with the map.
        direction: of the map.
        pairs: their number.
        held: those that were set aside.
        suspects: ids of pairs that do not seem to belong together, with the rank of their partner.
        query_side: of a map for queries.
        ndcg_native: with judgements, of rows of the new model.
        ndcg_old: with judgements, of rows of the old model.
        judged_over: with judgements, the rows that were searched.
        curve: method, number of pairs, recall.
    """

    chosen: MapTrial
    translator: Translator
    why: str
    trials: Sequence[MapTrial]
    left_out: Sequence[str]
    old_alone: float
    pairing: Pairing
    thresholds: Sequence[tuple[float, float]]
    advice: Sequence[str]
    direction: Direction
    pairs: int
    held: VectorPairs
    suspects: Sequence[tuple[str, int]] = ()
    query_side: QuerySide | None = None
    ndcg_native: float | None = None
    ndcg_old: float | None = None
    judged_over: str = ""
    curve: Sequence[tuple[str, int, float]] = ()

    def quality(self) -> dict[str, Any]:
        """Return what the map's file carries."""
        return {
            "forecast": self.chosen.forecast.to_dict(),
            "held_out": self.chosen.held_out.to_dict(),
            "old_alone": self.old_alone,
            "pairs": self.pairs,
            "wrong_pairs": self.pairing.share,
            "kind": "document to document",
        }


@dataclass(frozen=True)
class MapCheck:
    """A map measured on pairs.

    Attributes:
        quality: of the map.
        old_alone: recall of the untouched old index.
        pairs: how many were measured.
        known: of these, pairs that the map was fitted on.
        left_out: pairs that the map was fitted on and that were not measured.
        forecast: the recall that its fit expected of rows it had not seen.
    """

    quality: MapQuality
    old_alone: float
    pairs: int
    known: int = 0
    left_out: int = 0
    forecast: float | None = None

    def page(self) -> Page:
        """Return what `transship translate check` says."""
        quality = self.quality
        counts = {"pairs": self.pairs, "known": self.known, "left_out": self.left_out}
        facts = {**quality.to_dict(), "old_alone": self.old_alone, **counts}
        figures = [
            KeyFigure(
                f"recall@{quality.k}", f"{quality.recall:.3f}", f"old index alone {self.old_alone:.3f}"
            ),
            KeyFigure("own row found", f"{quality.twin_recall:.3f}"),
            KeyFigure("cosine", f"{quality.cosine:.3f}"),
        ]
        blocks: list[Block] = [Facts(facts, shown=False), KeyFigures(figures)]
        if self.known:
            expected = f" The fit's forecast for other rows is {self.forecast:.3f}." if self.forecast else ""
            warning = f"The map was fitted on {self.known:,} of these pairs, so it looks better than it is."
            blocks.append(
                Text(f"{warning}{expected} Measure it on texts that it has not seen.", tone="warning")
            )
        if self.left_out:
            blocks.append(
                Text(f"{self.left_out:,} pairs that the map was fitted on are left out.", tone="note")
            )
        return Page("", f"on {self.pairs:,} pairs, document to document:", [Section("", blocks)])


@dataclass(frozen=True)
class FittedMap:
    """A map that was fitted and written: the fit, and what is at rest."""

    fit: MapFit
    saved: SavedMap

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        fit = self.fit
        return {
            "map": self.saved.path,
            "hash": self.saved.hash,
            "chosen": fit.chosen.name,
            "why": fit.why,
            "pairs": fit.pairs,
            "direction": fit.direction,
            "candidates": [_trial(trial) for trial in fit.trials],
            "old_alone": fit.old_alone,
            "ndcg": {"native": fit.ndcg_native, "old": fit.ndcg_old, "over": fit.judged_over},
            "wrong_pairs": [name for name, _ in fit.suspects[:20]],
            "thresholds": [list(pair) for pair in fit.thresholds],
            "query_side": None if fit.query_side is None else asdict(fit.query_side),
            "advice": list(fit.advice),
        }

    def blocks(self) -> list[Section]:
        """Return what there is to say of the map; all pictures are of rows that were held out."""
        fit, pairs = self.fit, self.fit.held
        source, target = pairs.sides(fit.direction)
        moved = np.asarray(fit.chosen.translator.transform(source))
        advice = [Text(line, tone="note" if number else "plain") for number, line in enumerate(fit.advice)]
        left_out = [Text(line, tone="note") for line in fit.left_out]
        scores = [_key_figures(fit), _methods(fit), *left_out, *_query_side(fit), *_curves(fit)]
        spaces = [_norms(source, moved, target), *_projections(source, moved, target)]
        return [
            Section("Figures", [Facts(self.summary(), shown=False), *scores, _thresholds(fit)]),
            Section("What to do", advice),
            Section("Spaces", [*spaces, _overlap(moved, target)], detail=True),
            Section("Worst rows", [_worst(pairs.ids, moved, target), *_wrong(fit)], detail=True),
        ]

    def page(self, command: str = "") -> Page:
        """Return the page of `transship translate fit`."""
        fit, about, quality = self.fit, self.saved.about, self.fit.chosen.forecast
        summary = (
            f"{fit.pairs:,} pairs; chosen: {fit.why}. Forecast, document to document: {quality.recall:.0%} "
            f"of the native top {quality.k} among translated rows; the old index left alone has "
            f"{fit.old_alone:.0%}. Map {self.saved.hash[:8]} in {self.saved.path}."
        )
        provenance = Provenance(
            command=command,
            inputs={"old": about["pairs"]["old"], "new": about["pairs"]["new"], "map": self.saved.hash},
            parameters={key: str(value) for key, value in fit.translator.get_params().items()},
            versions=library_versions(),
            notes={
                "source model": about["source"] or "unknown",
                "target model": about["target"] or "unknown",
            },
        )
        return Page("Translating embeddings", summary, self.blocks(), provenance)


def _trial(trial: MapTrial) -> dict[str, Any]:
    return {
        "method": trial.name,
        "restored": trial.restored,
        "forecast": trial.forecast.to_dict(),
        "held_out": trial.held_out.to_dict(),
        "seconds": round(trial.seconds, 3),
        "ndcg": trial.ndcg,
        "fused": trial.fused,
    }


def _query_side(fit: MapFit) -> list[Block]:
    if fit.query_side is None:
        return []
    with_mean, without = fit.query_side.with_mean[1], fit.query_side.without_mean[1]
    body = f"query with the old mean {with_mean:.3f}, without {without:.3f} (recall against the new model)"
    return [Text(body)]


def _key_figures(fit: MapFit) -> KeyFigures:
    forecast, held = fit.chosen.forecast, fit.chosen.held_out
    gallery = f"top {forecast.k} of {forecast.gallery:,} rows"
    shares = {
        "Forecast recall": (
            forecast.recall,
            f"{gallery}, left out one by one",
        ),
        "Held-out recall": (held.recall, f"among {held.gallery:,} rows that were set aside"),
        "Old index alone": (fit.old_alone, "agreement of the old model with the new"),
        "Own row found": (forecast.twin_recall, "a native row finds its translated twin first"),
        "Wrong pairs": (fit.pairing.share, "share that does not belong together"),
    }
    return KeyFigures([KeyFigure(name, f"{share:.1%}", note) for name, (share, note) in shares.items()])


def _methods(fit: MapFit) -> Table:
    judged = bool(fit.judged_over)
    names = ["forecast recall", "held-out recall", "forecast cosine", "own row found"]
    heads = [Column(name, 3, "max" if name.endswith("recall") else None) for name in names]
    columns: list[str | Column] = [
        "method",
        *heads,
        *([Column("nDCG", 3), Column("nDCG fused", 3)] if judged else []),
    ]
    rows: list[list[Any]] = []
    for trial in fit.trials:
        forecast, held = trial.forecast, trial.held_out
        figures = [forecast.recall, held.recall, forecast.cosine, forecast.twin_recall]
        name = f"{trial.name} (variance restored)" if trial.restored else trial.name
        rows.append([name, *figures, trial.ndcg, trial.fused, trial.seconds])
    nothing = [None] * 3
    rows.append(["old model alone", fit.old_alone, *nothing, fit.ndcg_old, None, None])
    if judged:
        rows.append(["everything re-embedded", 1.0, *nothing, fit.ndcg_native, None, None])
    return Table(
        [*columns, Column("CPU seconds", 2)],
        [row if judged else [*row[:5], row[7]] for row in rows],
        "Every method on rows that it did not see; a forecast leaves out one row at a time, or folds."
        + (f" nDCG@{fit.chosen.forecast.k} over {fit.judged_over}." if judged else ""),
    )


def _curves(fit: MapFit) -> list[Block]:
    if not fit.curve:
        return []
    sizes = sorted({size for _, size, _ in fit.curve})
    values = {(name, size): recall for name, size, recall in fit.curve}
    series = {
        name: [values.get((name, size)) for size in sizes]
        for name in dict.fromkeys(name for name, _, _ in fit.curve)
    }
    return [
        figures.lines(
            sizes,
            series,
            x_title="pairs",
            y_title="held-out recall",
            log_x=True,
            caption=f"Recall by number of pairs, among the {len(fit.held):,} rows that were held out: "
            "fewer than in the table, so the figures are higher.",
        )
    ]


def _thresholds(fit: MapFit) -> Table:
    return Table(
        [Column("score in the old space", 2), Column("as selective in the new", 3)],
        [list(pair) for pair in fit.thresholds],
        "A score threshold of the old model, and the score that as many pairs of rows pass with the new one.",
    )


def _norms(source: Array, moved: Array, target: Array) -> Figure:
    groups = {
        name: np.linalg.norm(_some(rows), axis=1).tolist()
        for name, rows in (("old", source), ("translated", moved), ("native", target))
    }
    return figures.boxes(
        groups, group_title="rows", value_title="length", caption="Lengths of vectors that were held out."
    )


def _projections(source: Array, moved: Array, target: Array) -> list[Block]:
    """Before: old rows on their own axes. After: translated and native rows on the native axes."""
    before = _plane(source)
    after = _plane(target)
    first = before(_some(source))
    translated, native = after(_some(moved)), after(_some(target))
    return [
        figures.scatter(
            {"old": _columns(first)},
            x_title="first axis",
            y_title="second axis",
            caption="Old rows, held out.",
        ),
        figures.scatter(
            {"native": _columns(native), "translated": _columns(translated)},
            x_title="first axis",
            y_title="second axis",
            caption="The same rows after translation, on the principal axes of the native ones.",
        ),
    ]


def _overlap(moved: Array, target: Array) -> Figure:
    rows = _places(len(target))
    shared = neighbours(target[rows], target, 10, own=rows), neighbours(target[rows], moved, 10, own=rows)
    counts = [len(set(a) & set(b)) for a, b in zip(*map(np.ndarray.tolist, shared), strict=True)]
    histogram = [counts.count(number) for number in range(11)]
    return figures.bars(
        [str(number) for number in range(11)],
        {"rows": histogram},
        label_title="shared neighbours of ten",
        value_title="rows",
        horizontal=False,
        caption=f"How many of its ten native neighbours a row keeps, among {len(target):,} held out.",
    )


def _worst(ids: Sequence[Any], moved: Array, target: Array) -> Table:
    cosines = (unit_rows(moved) * unit_rows(target)).sum(1)
    rows = [[str(ids[row]), float(cosines[row])] for row in np.argsort(cosines)[:15]]
    return Table(
        [Column("id", code=True), Column("cosine with its partner", 3)],
        rows,
        "Held-out rows that translate worst.",
    )


def _wrong(fit: MapFit) -> list[Block]:
    if not fit.suspects:
        return [Text("No pair looks wrong.", tone="good")]
    return [
        Table(
            [Column("id", code=True), "rank of its partner"],
            [list(suspect) for suspect in fit.suspects[:15]],
            "Pairs that do not seem to belong together.",
        )
    ]


def _places(count: int) -> Array:
    return np.unique(np.linspace(0, count - 1, min(POINTS, count)).astype(np.int64))


def _some(rows: Array) -> Array:
    return rows[_places(len(rows))]


def _columns(points: Array) -> tuple[list[float], list[float]]:
    return points[:, 0].tolist(), points[:, 1].tolist()


def _plane(rows: Array) -> Any:
    mean = rows.mean(0)
    axes = np.linalg.svd(_some(rows) - mean, full_matrices=False)[2][:2].T
    if axes.shape[1] < 2:
        axes = np.hstack([axes, np.zeros_like(axes)])
    return lambda some: (some - mean) @ axes
