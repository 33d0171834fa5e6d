"""What adapt has to say, as pages: what to use, how stage 1 went, the bound, and where features lie."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from transship.report import (
    Block,
    Column,
    Facts,
    Page,
    Provenance,
    Section,
    Table,
    Text,
    figures,
    library_versions,
)
from transship.types import Array
from transship.verbs.adapt.adapted import Adapted
from transship.verbs.adapt.bound import Bound
from transship.verbs.adapt.model.source import SourceSide

POINTS = 300  # per cloud: what a browser draws and t-SNE finishes at once
FACTS = ("backbone", "task", "method", "metric", "rows", "validation", "baselines", "advice", "notes", "data")
TITLES = {
    "start": "before stage 1: the untrained embedder, from which naive fine-tuning would start",
    "fa": "after FA",
    "fld": "after FA, then FLD",
    "fa+fld": "after FA + FLD",
    "stage 2": "after stage 2: the model's own embedder",
}
_STAGE_ONE = {
    "w1": "W₁",
    "w1_source": "source W₁",
    "spread": "spread",
    "fld": "FLD",
    "held_out_fld": "held-out FLD",
    "entropy_z": "H(Z)",
    "probe_error": "probe error",
}


def fit_page(
    adapted: Adapted,
    *,
    folder: Path | None = None,
    command: str = "",
    sensitivity: Sequence[tuple[float, float]] = (),
    path: Sequence[Mapping[str, Any]] = (),
    clouds: Mapping[str, Tensor] | None = None,
    bound: Bound | None = None,
    pictures: bool = True,
) -> Page:
    """Return the page of a fit.

    Args:
        adapted: the model.
        folder: where it was written.
        command: that made it.
        sensitivity: (ω, validation metric) of other fits, Fig. 6.
        path: fits that break stage 1 off: name, gap and validation metric of each, Fig. 3.
        clouds: pooled features after stage 2 of these fits, by name.
        bound: the terms of Theorem 7 on the validation rows.
        pictures: whether it has the sections that a terminal leaves out.
    """
    about, source = adapted.about, adapted.source
    figure = f"{about['metric']} {about['validation'][about['metric']]:.4f}"
    summary = (
        f"{about['backbone']} adapted to {about['task']} by {about['method']}: validation {figure} "
        f"on {about['rows']['validation']} rows."
    )
    summary += f" Model in {folder}." if folder is not None else ""
    sections = [Section("What to use", _choice(adapted, folder))]
    if pictures:
        sections.append(Section("Training", _training(about, adapted.seconds), detail=True))
        if about["stage1"]:
            gap = [*_gap(adapted), *_path(about, path), *_sensitivity(about, sensitivity)]
            sections.append(Section("Stage 1", _stage_one(about), detail=True))
            sections.append(Section("Semantic gap and error", gap, detail=True))
        if bound is not None:
            rows = "validation rows, which chose the weights; the paper takes test rows (`adapt bound`)"
            sections.append(Section("Bound", _terms(bound, rows), detail=True))
        if source is not None and adapted.snapshots:
            drawn = _clouds(adapted, source, path, clouds or {})
            sections.append(Section("Features", drawn, detail=True))
        if source is not None:
            sections.append(Section("Source", _source(source), detail=True))
    proxy = {"proxy": source.fingerprint} if source is not None else {}
    provenance = Provenance(
        command=command,
        inputs={"backbone": about["backbone_hash"], "data": about["data"]} | proxy,
        parameters=about["settings"],
        versions=library_versions(),
        notes={"seed": about["seed"]},
    )
    return Page("Adapting a pretrained transformer", summary, sections, provenance)


def bound_page(bound: Bound, model: str) -> Page:
    """Return the page of `transship adapt bound`."""
    summary = f"{model}: target error {bound.err_target:.3f} nats, bound {bound.total:.3f}."
    facts = Facts(bound.to_dict(), shown=False)
    terms = Section("Bound", [facts, *_terms(bound, "held-out rows")])
    return Page("The bound of an adapted model", summary, [terms])


def prediction_page(
    predicted: Array, ids: Sequence[Any], metrics: Mapping[str, float], out: Path | None
) -> Page:
    """Return what `transship adapt predict` says."""
    facts = {
        "rows": len(predicted),
        "metrics": metrics,
        "predictions": predicted.tolist() if out is None else None,
        "out": None if out is None else str(out),
    }
    shown = {name: f"{value:.4f}" for name, value in metrics.items() if value == value}
    blocks: list[Block] = [Facts(facts, shown=False), Facts(shown, in_json=False)]
    if out is not None:
        blocks.append(Text(f"{len(predicted):,} predictions in {out}"))
    elif not metrics:
        few = [[str(row), str(value)] for row, value in zip(ids[:20], predicted[:20], strict=False)]
        blocks.append(Table(["row", "prediction"], few))
    return Page("", "", [Section("", blocks)])


def _choice(adapted: Adapted, folder: Path | None) -> list[Block]:
    about, seconds = adapted.about, adapted.seconds
    metric = about["metric"]
    facts = {"model": folder} | {name: about.get(name) for name in FACTS}
    facts |= {"stage1": about["stage1"], "history": about["history"], "seconds": dict(seconds)}
    rows = [[f"adapted ({about['method']})", about["validation"][metric]]]
    rows += [[f"raw {row['name']}", row["validation"]] for row in about.get("baselines", [])]
    table = Table(
        ["model", Column(f"validation {metric}", 4, "min", help="smaller is better")],
        rows,
        "Validation rows choose; they are no test set.",
    )
    sentence = str(about.get("advice") or "")
    advice = [Text(sentence[0].upper() + sentence[1:] + ".", tone="note")] if sentence else []
    notes = [Text(note, tone="warning") for note in about["notes"]]
    return [Facts(facts, shown=False), table, *notes, *advice]


def _training(about: Mapping[str, Any], seconds: Mapping[str, float]) -> list[Block]:
    history = about["history"]
    epochs = [row["epoch"] for row in history]
    passes = "pass over the rows"
    spent = {**seconds, **{f"raw {row['name']}": row.get("seconds") for row in about.get("baselines", [])}}
    losses = {"training": _column(history, "loss"), "validation": _column(history, "validation_loss")}
    chosen_by = {"validation": _column(history, "validation")}
    return [
        figures.lines(
            epochs, losses, x_title=passes, y_title=f"loss ({about['loss']})", caption="Loss of stage 2."
        ),
        figures.lines(
            epochs,
            chosen_by,
            x_title=passes,
            y_title=about["metric"],
            caption="What the best weights are chosen by.",
        ),
        Table(
            ["metric", Column("validation", 4)],
            [list(pair) for pair in about["validation"].items()],
            "All metrics of the task.",
        ),
        Table(["part", Column("CPU seconds", 1)], [list(pair) for pair in spent.items()], "What it took."),
    ]


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [None if row[name] != row[name] else row[name] for row in rows]


def _stage_one(about: Mapping[str, Any]) -> list[Block]:
    rows = about["stage1"]
    nats = {"FLD": "fld", "held-out FLD": "held_out_fld", "H(Z)": "entropy_z"}
    nats |= {"H(Z')": "entropy_target", "mean H(p_s)": "mean_entropy"}
    distances = {"W₁, target to source": "w1", "W₁, source to source": "w1_source"}

    def lines(series: Mapping[str, str], title: str, caption: str) -> Block:
        columns = {name: _column(rows, key) for name, key in series.items()}
        places = list(range(len(rows)))
        return figures.lines(
            places, columns, x_title="logged point, in order", y_title=title, caption=caption
        )

    return [
        lines(
            distances,
            "W₁",
            "Distance of token means of embedded rows, with that of two draws of the source.",
        ),
        lines(nats, "nats", "Feature-label distortion H(Z'|Z) and entropies."),
        lines(
            {"spread": "spread"},
            "target spread / source spread",
            "Below 0.5, a small W₁ is partly a collapse onto the source's centre.",
        ),
        Table(
            ["phase", "step", *(Column(name, 3) for name in _STAGE_ONE.values())],
            [[row["phase"], row["step"], *(row[key] for key in _STAGE_ONE)] for row in rows],
            "Stage 1 on whole sets (1,024 training and 512 validation rows at most; W₁ takes 512).",
        ),
    ]


def _gap(adapted: Adapted) -> list[Block]:
    rows = adapted.about["stage1"]
    omega = adapted.source.omega if adapted.source is not None else 1.0
    return _scatter(
        "stage 1",
        [omega * row["w1"] + row["fld"] for row in rows],
        [row["probe_error"] for row in rows],
        [f"{row['phase']} {row['step']}" for row in rows],
        titles=("semantic gap: ω·W₁ + FLD (nats)", "error of a probe on validation rows"),
        caption="The path of stage 1: the gap, and the error of a ridge probe on the frozen body. The "
        "paper's Fig. 3 has the error of the fine-tuned model, for which `--path` fits again.",
        points="the probe's error, points of one run",
    )


def _path(about: Mapping[str, Any], path: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return Fig. 3 and Fig. 2 (d): errors of models fitted from points along stage 1."""
    if not path:
        return []
    gap, error, names = ([stop[key] for stop in path] for key in ("gap", "validation", "name"))
    metric = about["metric"]
    return [
        *_scatter(
            "fitted models",
            gap,
            error,
            names,
            titles=(
                "semantic gap where stage 1 ends: ω·W₁ + FLD (nats)",
                f"validation {metric} after stage 2",
            ),
            caption="Target error against semantic gap (Fig. 3): a whole fit per point, same seed.",
            points="the target error, a whole fit each",
        ),
        Table(
            ["stage 1", Column("semantic gap", 3), Column(metric, 4, "min")],
            [list(row) for row in zip(names, gap, error, strict=True)],
            "The same figures (Fig. 2 d): without stage 1, with part of it, and with all.",
            sortable=False,
        ),
    ]


def _scatter(
    group: str,
    gap: Sequence[float],
    error: Sequence[float],
    names: Sequence[str],
    *,
    titles: tuple[str, str],
    caption: str,
    points: str,
) -> list[Block]:
    """Return errors against gaps, with their correlation where there is one."""
    x_title, y_title = titles
    picture = figures.scatter(
        {group: (gap, error)}, x_title=x_title, y_title=y_title, labels={group: names}, caption=caption
    )
    if len(gap) < 3 or not np.std(gap) > 0 or not np.std(error) > 0:
        return [picture]
    pearson = float(np.corrcoef(gap, error)[0, 1])
    return [
        picture,
        Text(f"Pearson correlation of gap and error: **{pearson:.3f}** over {len(gap)} points ({points})."),
    ]


def _sensitivity(about: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> list[Block]:
    if not points:
        return []
    return [
        figures.lines(
            [omega for omega, _ in points],
            {about["method"]: [value for _, value in points]},
            x_title="ω",
            y_title=f"validation {about['metric']}",
            caption="Sensitivity to ω: one whole fit per point, same seed.",
        )
    ]


def _terms(bound: Bound, rows: str) -> list[Block]:
    """Return the terms of Theorem 7 as stacked bars (Fig. 5), with their estimators and caveats."""
    series: dict[str, list[Any]] = {name: [value, None] for name, value in bound.bars().items()}
    series["target error"] = [None, bound.err_target]
    verdict = "holds" if bound.holds else "does not hold"
    sums = {
        **bound.bars(),
        "bound: the sum with the nominal ω": bound.total,
        "sum with the measured gradient norm": bound.total_measured,
        "sum with greedy couplings for FLD": bound.total_greedy,
        "target error": bound.err_target,
        "gap as a share of the sum": bound.gap,
        "ω": bound.omega,
        "measured gradient norm, 99 %": bound.lipschitz,
        "W₁, target to source": bound.distance,
        "W₁, source to source": bound.distance_source,
    }
    return [
        Text(f"The inequality {verdict}: {bound.err_target:.3f} against {bound.total:.3f} nats."),
        figures.bars(
            ["bound", "target error"],
            series,
            label_title="",
            value_title="nats",
            stacked=True,
            caption=f"Theorem 7, its terms stacked, and the error they bound, on {bound.rows} {rows}.",
        ),
        Table(
            ["figure", Column("value", 3)],
            [list(pair) for pair in sums.items()],
            "Terms, sums (nats) and what they are made of.",
            sortable=False,
        ),
        Table(
            ["term", "estimator"],
            [list(pair) for pair in bound.estimators.items()],
            "How each term was found.",
        ),
        *(Text(caveat, tone="note") for caveat in bound.caveats),
    ]


def _clouds(
    adapted: Adapted,
    source: SourceSide,
    path: Sequence[Mapping[str, Any]],
    further: Mapping[str, Tensor],
) -> list[Block]:
    """Draw source and target features in one t-SNE plane, one picture per stage."""
    from sklearn.manifold import TSNE  # start-up: only this picture needs it

    every = max(1, len(source.features) // POINTS)
    drawn = source.features[::every][:POINTS].numpy()
    clouds = {
        TITLES.get(name, f"after {name}"): value[:POINTS].numpy() for name, value in adapted.snapshots.items()
    }
    for stop in path:
        figure = f"validation {adapted.about['metric']} {stop['validation']:.4f}"
        title = f"after stage 2 of a fit of its own ({stop['name']}), {figure}"
        clouds[title] = further[stop["name"]][:POINTS].numpy()
    stacked = np.concatenate([drawn, *clouds.values()])
    perplexity = min(30.0, (len(stacked) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(stacked)
    first, *parts = np.split(plane, np.cumsum([len(drawn), *(len(rows) for rows in clouds.values())])[:-1])
    return [
        figures.scatter(
            {
                "source": (first[:, 0].tolist(), first[:, 1].tolist()),
                "target": (part[:, 0].tolist(), part[:, 1].tolist()),
            },
            x_title="t-SNE 1",
            y_title="t-SNE 2",
            caption=f"Pooled features, {title}; one plane for all pictures.",
        )
        for title, part in zip(clouds, parts, strict=True)
    ]


def _source(source: SourceSide) -> list[Block]:
    rows = [[point.omega, point.accuracy, point.error, point.worst] for point in source.grid]
    names = {"ω": 1, "held-out accuracy": 3, "held-out CE": 3, "largest ‖∇ℓ‖": 3}
    blocks: list[Block] = [
        Text(
            f"Proxy {source.name}: {len(source.labels):,} items, {source.classes} classes; the recalibrated "
            f"head has accuracy {source.accuracy:.3f} and cross-entropy {source.error:.3f} nats on held-out "
            f"items at ω = {source.omega:g}."
        ),
        Table(
            [Column(name, decimals) for name, decimals in names.items()],
            rows,
            "The source head after recalibration, by ω (Fig. 7).",
        ),
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


__all__ = ["bound_page", "fit_page", "prediction_page"]
