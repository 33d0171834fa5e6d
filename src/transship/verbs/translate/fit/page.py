"""The page of a fit: what was found, what it is worth, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transship.report import (
    Block,
    Column,
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
from transship.verbs.translate.api import Fitted
from transship.verbs.translate.fit.fitting import Fit
from transship.verbs.translate.nearest import neighbours, unit_rows

Array = np.ndarray[Any, Any]
# points of a projection, rows of a distribution: what a browser draws at once
POINTS = 400


def fit_page(fitted: Fitted, command: str = "") -> Page:
    """Return the page of `transship translate fit`; all its pictures are of rows that were held out."""
    found, pairs = fitted.fit, fitted.fit.held
    source, target = (pairs.old, pairs.new) if found.direction == "index" else (pairs.new, pairs.old)
    moved = np.asarray(found.chosen.translator.transform(source))
    quality = found.chosen.forecast
    summary = (
        f"{found.why}. Forecast, document to document: {quality.recall:.0%} of the native top {quality.k} "
        f"among translated rows; the old index left alone has {found.old_alone:.0%}."
    )
    sections = [
        Section(
            "What to do",
            [Text(line, tone="note" if number else "plain") for number, line in enumerate(found.advice)],
        ),
        Section("Figures", [_key_figures(found), _methods(found), *_curves(found), _thresholds(found)]),
        Section(
            "Spaces",
            [_norms(source, moved, target), *_projections(source, moved, target), _overlap(moved, target)],
        ),
        Section("Worst rows", [_worst(pairs.ids, moved, target), *_wrong(found)]),
    ]
    provenance = Provenance(
        command=command,
        inputs={
            "old": fitted.saved.about["pairs"]["old"],
            "new": fitted.saved.about["pairs"]["new"],
            "map": fitted.saved.hash,
        },
        parameters={key: str(value) for key, value in found.translator.get_params().items()},
        versions=library_versions(),
        notes={
            "source model": fitted.saved.about["source"] or "unknown",
            "target model": fitted.saved.about["target"] or "unknown",
        },
    )
    return Page("Translating embeddings", summary, sections, provenance)


def _key_figures(found: Fit) -> KeyFigures:
    forecast, held = found.chosen.forecast, found.chosen.held_out
    return KeyFigures(
        [
            KeyFigure(
                "Forecast recall",
                forecast.recall,
                f"top {forecast.k} of {forecast.gallery:,} rows, left out one by one",
            ),
            KeyFigure("Held-out recall", held.recall, f"among {held.gallery:,} rows that were set aside"),
            KeyFigure("Old index alone", found.old_alone, "agreement of the old model with the new"),
            KeyFigure("Own row found", forecast.twin_recall, "a native row finds its translated twin first"),
            KeyFigure("Wrong pairs", found.pairing.share, "share that does not belong together"),
        ]
    )


def _methods(found: Fit) -> Table:
    columns: list[str | Column] = [
        "method",
        Column("forecast recall", 3, "max"),
        Column("held-out recall", 3, "max"),
        Column("forecast cosine", 3),
        Column("held-out cosine", 3),
        Column("own row found", 3),
        Column("nDCG", 3),
        Column("nDCG fused", 3),
        Column("CPU seconds", 2),
    ]
    rows: list[list[Any]] = [
        [
            f"{one.name}{' (variance restored)' if one.restored else ''}",
            one.forecast.recall,
            one.held_out.recall,
            one.forecast.cosine,
            one.held_out.cosine,
            one.forecast.twin_recall,
            one.ndcg,
            one.fused,
            one.seconds,
        ]
        for one in found.candidates
    ]
    rows.append(["old model alone", found.old_alone, None, None, None, None, found.ndcg_old, None, None])
    if found.ndcg_native is not None:
        rows.append(["everything re-embedded", 1.0, None, None, None, None, found.ndcg_native, None, None])
    return Table(
        columns,
        rows,
        "Every method on rows that it did not see; a forecast leaves out one row at a time, or folds.",
    )


def _curves(found: Fit) -> list[Block]:
    if not found.curve:
        return []
    sizes = sorted({size for _, size, _ in found.curve})
    values = {(name, size): recall for name, size, recall in found.curve}
    series = {
        name: [values.get((name, size)) for size in sizes]
        for name in dict.fromkeys(name for name, _, _ in found.curve)
    }
    return [
        figures.lines(
            sizes,
            series,
            x_title="pairs",
            y_title="held-out recall",
            log_x=True,
            caption=f"Recall by number of pairs, among the {len(found.held):,} rows that were held out: "
            "fewer than in the table, so the figures are higher.",
        )
    ]


def _thresholds(found: Fit) -> Table:
    return Table(
        [Column("score in the old space", 2), Column("as selective in the new", 3)],
        [list(pair) for pair in found.thresholds],
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


def _wrong(found: Fit) -> list[Block]:
    if not found.suspects:
        return [Text("No pair looks wrong.", tone="good")]
    return [
        Table(
            [Column("id", code=True), "rank of its partner"],
            [list(one) for one in found.suspects[:15]],
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
