"""The page of a fit: what to use, how stage 1 went, the bound, and where features lie."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transship.report import (
    Block,
    Column,
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
from transship.verbs.adapt.adapted import Adapted

Array = np.ndarray[Any, Any]
POINTS = 300  # per cloud: what a browser draws and t-SNE finishes at once
TITLES = {
    "start": "before stage 1: the untrained embedder, from which naive fine-tuning would start",
    "fa": "after FA",
    "fld": "after FA, then FLD",
    "fa+fld": "after FA + FLD",
    "stage 2": "after stage 2: the model's own embedder",
}


def fit_page(adapted: Adapted, command: str = "") -> Page:
    """Return the page of `transship adapt fit`."""
    about = adapted.about
    figure = about["validation"][about["metric"]]
    summary = (
        f"{about['backbone']} adapted to {about['task']} by {about['method']}: validation {about['metric']} "
        f"{figure:.4f} on {about['rows']['validation']} rows."
    )
    sections = [
        Section("What to use", _choice(adapted)),
        Section("Training", _training(about)),
    ]
    if about["stage1"]:
        sections.append(Section("Stage 1", _stage_one(about)))
        sections.append(Section("Semantic gap and error", _gap(adapted)))
    if adapted.bound is not None:
        chosen_by = "validation rows, which chose the weights; the paper takes test rows (`adapt bound`)"
        sections.append(Section("Bound", bound_blocks(adapted.bound, chosen_by)))
    if adapted.source is not None and adapted.snapshots:
        sections.append(Section("Features", _clouds(adapted)))
    if adapted.source is not None:
        sections.append(Section("Source", _source(adapted)))
    provenance = Provenance(
        command=command,
        inputs={"backbone": about["backbone_hash"], "data": about["data"]}
        | ({"proxy": adapted.source.fingerprint} if adapted.source is not None else {}),
        parameters=about["settings"],
        versions=library_versions(),
        notes={"seed": about["seed"]},
    )
    return Page("Adapting a pretrained transformer", summary, sections, provenance)


def _choice(adapted: Adapted) -> list[Block]:
    about = adapted.about
    metric, value = about["metric"], about["validation"][about["metric"]]
    key = [KeyFigure(f"adapted, {metric}", value, f"{about['rows']['validation']} validation rows")]
    raw = about.get("baselines", [])
    if raw:
        best = min(raw, key=lambda row: row["validation"])
        key.append(KeyFigure(f"raw baseline {best['name']}", best["validation"], "no transformer at all"))
    blocks: list[Block] = [KeyFigures(key)]
    if about.get("advice"):
        sentence = str(about["advice"])
        blocks.append(Text(sentence[0].upper() + sentence[1:] + ".", tone="note"))
    if raw:
        rows: list[list[Any]] = [
            [f"adapted ({about['method']})", value, sum(adapted.seconds.values()) or None]
        ]
        rows += [[f"raw {row['name']}", row["validation"], row.get("seconds")] for row in raw]
        columns: list[str | Column] = [
            "model",
            Column(metric, 4, "min", help="smaller is better"),
            Column("CPU seconds", 1),
        ]
        blocks.append(Table(columns, rows, "Validation rows choose; they are no test set."))
    blocks += [Text(note, tone="warning") for note in about["notes"]]
    others = [[name, figure] for name, figure in about["validation"].items()]
    return [*blocks, Table(["metric", Column("validation", 4)], others, "All metrics of the task.")]


def _training(about: Mapping[str, Any]) -> list[Block]:
    history = about["history"]
    epochs = [row["epoch"] for row in history]
    losses = {"training": _column(history, "loss"), "validation": _column(history, "validation_loss")}
    return [
        figures.lines(
            epochs,
            losses,
            x_title="pass over the rows",
            y_title=f"loss ({about['loss']})",
            caption="Loss of stage 2.",
        ),
        figures.lines(
            epochs,
            {"validation": _column(history, "validation")},
            x_title="pass over the rows",
            y_title=about["metric"],
            caption="What the best weights are chosen by.",
        ),
    ]


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [None if row[name] != row[name] else row[name] for row in rows]


def _stage_one(about: Mapping[str, Any]) -> list[Block]:
    rows = about["stage1"]
    place = list(range(len(rows)))
    shared: dict[str, Any] = {"x_title": "logged point, in order"}
    nats = {
        "FLD": _column(rows, "fld"),
        "held-out FLD": _column(rows, "held_out_fld"),
        "H(Z)": _column(rows, "entropy_z"),
        "H(Z')": _column(rows, "entropy_target"),
        "mean H(p_s)": _column(rows, "mean_entropy"),
    }
    table = Table(
        [
            "phase",
            "step",
            *(
                Column(name, 3)
                for name in ("W₁", "source W₁", "spread", "FLD", "held-out FLD", "H(Z)", "probe error")
            ),
        ],
        [
            [
                row["phase"],
                row["step"],
                *(
                    row[name]
                    for name in (
                        "w1",
                        "w1_source",
                        "spread",
                        "fld",
                        "held_out_fld",
                        "entropy_z",
                        "probe_error",
                    )
                ),
            ]
            for row in rows
        ],
        "Stage 1 on whole sets (1,024 training and 512 validation rows at most; W₁ takes 512).",
    )
    return [
        figures.lines(
            place,
            {"W₁, target to source": _column(rows, "w1"), "W₁, source to source": _column(rows, "w1_source")},
            y_title="W₁",
            caption="Distance of token means of embedded rows, beside that of two draws of the source.",
            **shared,
        ),
        figures.lines(
            place, nats, y_title="nats", caption="Feature-label distortion H(Z'|Z) and entropies.", **shared
        ),
        figures.lines(
            place,
            {"spread": _column(rows, "spread")},
            y_title="target spread / source spread",
            caption="Below 0.5, a small W₁ is partly a collapse onto the source's centre.",
            **shared,
        ),
        table,
    ]


def _gap(adapted: Adapted) -> list[Block]:
    rows = adapted.about["stage1"]
    omega = adapted.source.omega if adapted.source is not None else 1.0
    gap = [omega * row["w1"] + row["fld"] for row in rows]
    error = [row["probe_error"] for row in rows]
    names = [f"{row['phase']} {row['step']}" for row in rows]
    blocks: list[Block] = [
        figures.scatter(
            {"stage 1": (gap, error)},
            x_title="semantic gap: ω·W₁ + FLD (nats)",
            y_title="error of a probe on validation rows",
            labels={"stage 1": names},
            caption=(
                "The path of stage 1: the gap, and the error of a ridge probe on the frozen body. The "
                "paper's Fig. 3 has the error of the fine-tuned model, for which `--path` fits again."
            ),
        ),
        *_correlation(gap, error, "the probe's error, points of one run"),
        *_path(adapted.about),
    ]
    points = adapted.about.get("sensitivity", [])
    if points:
        blocks.append(
            figures.lines(
                [point[0] for point in points],
                {adapted.about["method"]: [point[1] for point in points]},
                x_title="ω",
                y_title=f"validation {adapted.about['metric']}",
                caption="Sensitivity to ω: one whole fit per point, same seed.",
            )
        )
    return blocks


def _path(about: Mapping[str, Any]) -> list[Block]:
    """Return Fig. 3 and Fig. 2 (d): errors of models fitted from points along stage 1."""
    points = about.get("path", [])
    if not points:
        return []
    gap, error = [one["gap"] for one in points], [one["validation"] for one in points]
    names = [one["name"] for one in points]
    metric = about["metric"]
    return [
        figures.scatter(
            {"fitted models": (gap, error)},
            x_title="semantic gap where stage 1 ends: ω·W₁ + FLD (nats)",
            y_title=f"validation {metric} after stage 2",
            labels={"fitted models": names},
            caption="Target error against semantic gap (Fig. 3): a whole fit per point, same seed.",
        ),
        *_correlation(gap, error, "the target error, a whole fit each"),
        Table(
            ["stage 1", Column("semantic gap", 3), Column(metric, 4, "min")],
            [list(row) for row in zip(names, gap, error, strict=True)],
            "The same figures (Fig. 2 d): without stage 1, with part of it, and with all.",
            sortable=False,
        ),
    ]


def _correlation(gap: Sequence[float], error: Sequence[float], what: str) -> list[Block]:
    if len(gap) < 3 or not np.std(gap) > 0 or not np.std(error) > 0:
        return []
    found = float(np.corrcoef(gap, error)[0, 1])
    return [Text(f"Pearson correlation of gap and error: **{found:.3f}** over {len(gap)} points ({what}).")]


def bound_blocks(found: Any, which: str = "held-out rows") -> list[Block]:
    """Return the terms of Theorem 7 as stacked bars (Fig. 5), with their estimators and caveats."""
    series = {name: [value, None] for name, value in found.bars().items()}
    series["target error"] = [None, found.err_target]
    bars = figures.bars(
        ["bound", "target error"],
        series,
        label_title="",
        value_title="nats",
        stacked=True,
        caption=f"Theorem 7, its terms stacked, and the error they bound, on {found.rows} {which}.",
    )
    verdict = "holds" if found.holds else "does not hold"
    rows = [
        ["sum with the nominal ω", found.total],
        ["sum with the measured gradient norm", found.total_measured],
        ["sum with greedy couplings for FLD", found.total_greedy],
        ["target error", found.err_target],
        ["gap as a share of the sum", found.gap],
        ["ω", found.omega],
        ["measured gradient norm, 99 %", found.lipschitz],
        ["W₁, target to source", found.distance],
        ["W₁, source to source", found.distance_source],
    ]
    return [
        Text(f"The inequality {verdict}: {found.err_target:.3f} against {found.total:.3f} nats."),
        bars,
        Table(["figure", Column("value", 3)], rows, "Sums (nats) and what they are made of.", sortable=False),
        Table(
            ["term", "estimator"],
            [list(pair) for pair in found.estimators.items()],
            "How each term was found.",
        ),
        *(Text(caveat, tone="note") for caveat in found.caveats),
    ]


def _clouds(adapted: Adapted) -> list[Block]:
    """Draw source and target features in one t-SNE plane, one picture per stage."""
    from sklearn.manifold import TSNE

    assert adapted.source is not None
    every = max(1, len(adapted.source.features) // POINTS)
    source = adapted.source.features[::every][:POINTS].numpy()
    clouds = {
        TITLES.get(name, f"after {name}"): value[:POINTS].numpy() for name, value in adapted.snapshots.items()
    }
    errors = {one["name"]: one["validation"] for one in adapted.about.get("path", [])}
    for name, value in adapted.path_clouds.items():
        figure = f"validation {adapted.about['metric']} {errors[name]:.4f}"
        clouds[f"after stage 2 of a fit of its own ({name}), {figure}"] = value[:POINTS].numpy()
    stacked = np.concatenate([source, *clouds.values()])
    perplexity = min(30.0, (len(stacked) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(stacked)
    first, blocks, start = plane[: len(source)], [], len(source)
    for title, rows in clouds.items():
        part = plane[start : start + len(rows)]
        start += len(rows)
        groups = {"source": _xy(first), "target": _xy(part)}
        blocks.append(
            figures.scatter(
                groups,
                x_title="t-SNE 1",
                y_title="t-SNE 2",
                caption=f"Pooled features, {title}; one plane for all pictures.",
            )
        )
    return list(blocks)


def _xy(rows: Array) -> tuple[list[float], list[float]]:
    return rows[:, 0].tolist(), rows[:, 1].tolist()


def _source(adapted: Adapted) -> list[Block]:
    source = adapted.source
    assert source is not None
    rows = [[point.omega, point.accuracy, point.error, point.worst] for point in source.grid]
    columns = [
        Column("ω", 1),
        Column("held-out accuracy", 3),
        Column("held-out CE", 3),
        Column("largest ‖∇ℓ‖", 3),
    ]
    blocks: list[Block] = [
        Text(
            f"Proxy {source.name}: {len(source.labels):,} items, {source.classes} classes; the recalibrated "
            f"head has accuracy {source.accuracy:.3f} and cross-entropy {source.error:.3f} nats on held-out "
            f"items at ω = {source.omega:g}."
        ),
        Table(columns, rows, "The source head after recalibration, by ω (Fig. 7)."),
    ]
    if len(rows) > 1:
        blocks.append(
            figures.lines(
                [row[0] for row in rows],
                {"held-out accuracy": [row[1] for row in rows]},
                x_title="ω",
                y_title="accuracy on the proxy",
                caption="What a smaller Lipschitz constant costs the source.",
            )
        )
    return blocks


__all__ = ["bound_blocks", "fit_page"]
