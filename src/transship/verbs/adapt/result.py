"""What adapt has to say, as pages: what to use, how stage 1 went, the bound, and where features lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from transship.verbs.adapt.adapted import ADAPTED, Adapted
from transship.verbs.adapt.bound import Bound
from transship.verbs.adapt.model.source import SourceSide

POINTS = 300  # per cloud: what a browser draws and t-SNE finishes at once
FACTS = (
    *("backbone", "task", "method", "metric", "rows", "validation", "baselines", "test", "advised"),
    *("advice", "notes", "data"),
)
TITLES = {
    "start": "before stage 1: the untrained embedder, from which naive fine-tuning would start",
    "fa": "after FA",
    "fld": "after FA, then FLD",
    "fa+fld": "after FA + FLD",
    "stage 2": "after stage 2: the model's own embedder",
}
_CURVES = {
    "W₁": {"W₁, target to source": "w1", "W₁, source to source": "w1_source"},
    "nats": {
        "FLD": "fld",
        "held-out FLD": "held_out_fld",
        "H(Z)": "entropy_z",
        "H(Z')": "entropy_target",
        "mean H(p_s)": "mean_entropy",
    },
    "target spread / source spread": {"spread": "spread"},
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


@dataclass(frozen=True, eq=False)
class FurtherFits:
    """Other fits of the same rows, for the page.

    Attributes:
        sensitivity: (ω, validation metric) of each, Fig. 6.
        path: name, semantic gap and validation metric of fits that break stage 1 off, Figs. 2 and 3.
        clouds: pooled features after stage 2 of these, by name.
    """

    sensitivity: Sequence[tuple[float, float]] = ()
    path: Sequence[Mapping[str, Any]] = ()
    clouds: Mapping[str, Tensor] = field(default_factory=dict)


def fit_page(
    adapted: Adapted,
    *,
    folder: Path | None = None,
    command: str = "",
    further: FurtherFits | None = None,
    bound: Bound | None = None,
    pictures: bool = True,
) -> Page:
    """Return the page of a fit.

    Args:
        adapted: the model.
        folder: where it was written.
        command: that made it.
        further: other fits of the same rows.
        bound: the terms of Theorem 7 on the validation rows.
        pictures: whether it has the sections that a terminal leaves out.
    """
    about = adapted.about
    figure = f"{about['metric']} {about['validation'][about['metric']]:.4f}"
    summary = (
        f"{about['backbone']} adapted to {about['task']} by {about['method']}: validation {figure} "
        f"on {about['rows']['validation']} rows."
    )
    summary += f" Model in {folder}." if folder is not None else ""
    details = _details(adapted, further or FurtherFits(), bound) if pictures else {}
    sections = [Section("What to use", _choice(adapted, folder))]
    sections += [Section(title, blocks, detail=True) for title, blocks in details.items()]
    provenance = Provenance(
        command=command,
        inputs={"backbone": about["backbone_hash"], "data": about["data"]}
        | ({} if adapted.source is None else {"proxy": adapted.source.fingerprint}),
        parameters=about["settings"],
        versions=library_versions(),
        notes={"seed": about["seed"]},
    )
    return Page("Adapting a pretrained transformer", summary, sections, provenance)


def _details(adapted: Adapted, further: FurtherFits, bound: Bound | None) -> dict[str, list[Block]]:
    about, source = adapted.about, adapted.source
    details = {"Training": _training(about, adapted.seconds)}
    if about["stage1"]:
        details["Stage 1"] = _stage_one(about)
        details["Semantic gap and error"] = [*_gap(adapted), *_further(about, further)]
    if bound is not None:
        rows = "validation rows, which chose the weights; the paper takes test rows (`adapt bound`)"
        details["Bound"] = _terms(bound, rows)
    if source is not None:
        if adapted.snapshots:
            details["Features"] = _clouds(adapted, source, further)
        details["Source"] = _source(source)
    return details


def bound_page(bound: Bound, model: str) -> Page:
    """Return the page of `transship adapt bound`."""
    summary = f"{model}: target error {bound.err_target:.3f} nats, bound {bound.total:.3f}."
    facts = Facts(bound.to_dict(), shown=False)
    terms = Section("Bound", [facts, *_terms(bound, "held-out rows")])
    return Page("The bound of an adapted model", summary, [terms])


def prediction_page(
    predicted: Array,
    ids: Sequence[Any],
    metrics: Mapping[str, float],
    out: Path | None,
    figures: tuple[str, str, Mapping[str, float]],
) -> Page:
    """Return what `transship adapt predict` says; `figures`: who answers, the metric, its value by model."""
    model, metric, by_model = figures
    facts = {
        "model": model,
        "models": {"metric": metric, **by_model} if by_model else None,
        "rows": len(predicted),
        "metrics": metrics,
        "predictions": predicted.tolist() if out is None else None,
        "out": None if out is None else str(out),
    }
    shown = {name: f"{value:.4f}" for name, value in metrics.items() if value == value}
    answers = {"model": _title(model), **shown}
    blocks: list[Block] = [Facts(facts, shown=False), Facts(answers, in_json=False)]
    if len(by_model) > 1:
        columns: list[str | Column] = ["model", Column(metric, 4, "min", help="smaller is better")]
        rows = [[_title(name), value] for name, value in by_model.items()]
        blocks.append(Table(columns, rows, "Every model on these rows; --use NAME lets another one answer."))
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
    test = about.get("test", {})
    figures = {ADAPTED: about["validation"][metric]}
    figures |= {row["name"]: row["validation"] for row in about.get("baselines", [])}
    parts = ["validation", "test"] if test else ["validation"]
    caption = "Validation rows choose, and test rows are measured once after that."
    table = Table(
        ["model", *(Column(f"{part} {metric}", 4, "min", help="smaller is better") for part in parts)],
        [
            [_title(name, about["method"]), value, *([test.get(name)] if test else [])]
            for name, value in figures.items()
        ],
        caption if test else "Validation rows choose; they are no test set.",
    )
    sentence = str(about.get("advice") or "")
    served = _title(str(about.get("advised", ADAPTED)), about["method"])
    sentence = (
        f"{sentence[:1].upper()}{sentence[1:]}. `adapt predict` answers with {served}" if sentence else ""
    )
    advice = [Text(f"{sentence}.", tone="note")] if sentence else []
    notes = [Text(note, tone="warning") for note in about["notes"]]
    return [Facts(facts, shown=False), table, *notes, *advice]


def _title(name: str, method: str = "") -> str:
    """Return how a page calls a model."""
    return f"raw {name}" if name != ADAPTED else f"{ADAPTED} ({method})" if method else ADAPTED


def _training(about: Mapping[str, Any], seconds: Mapping[str, float]) -> list[Block]:
    history, loss = about["history"], f"loss ({about['loss']})"
    passes = "pass over the rows", [row["epoch"] for row in history]
    losses = {"training": _column(history, "loss"), "validation": _column(history, "validation_loss")}
    chosen_by = {"validation": _column(history, "validation")}
    spent = {**seconds, **{f"raw {row['name']}": row.get("seconds") for row in about.get("baselines", [])}}
    return [
        _lines(passes, losses, loss, "Loss of stage 2."),
        _lines(passes, chosen_by, about["metric"], "What the best weights are chosen by."),
        _pairs(["metric", Column("validation", 4)], about["validation"], "All metrics of the task."),
        _pairs(["part", Column("CPU seconds", 1)], spent, "What it took."),
    ]


def _lines(
    x: tuple[str, Sequence[float]], series: Mapping[str, Sequence[Any]], title: str, caption: str
) -> Block:
    return figures.lines(x[1], series, x_title=x[0], y_title=title, caption=caption)


def _pairs(columns: Sequence[str | Column], pairs: Mapping[str, Any], caption: str) -> Table:
    return Table(columns, [list(pair) for pair in pairs.items()], caption, sortable=False)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [None if row[name] != row[name] else row[name] for row in rows]


def _stage_one(about: Mapping[str, Any]) -> list[Block]:
    rows = about["stage1"]
    places = "logged point, in order", list(range(len(rows)))
    pictures = {
        "W₁": "Distance of token means of embedded rows, with that of two draws of the source.",
        "nats": "Feature-label distortion H(Z'|Z) and entropies.",
        "target spread / source spread": "Below 0.5, a small W₁ is partly a collapse onto the source.",
    }
    return [
        *(
            _lines(places, {name: _column(rows, key) for name, key in _CURVES[title].items()}, title, caption)
            for title, caption in pictures.items()
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
        {
            f"{row['phase']} {row['step']}": (omega * row["w1"] + row["fld"], row["probe_error"])
            for row in rows
        },
        ("semantic gap: ω·W₁ + FLD (nats)", "error of a probe on validation rows"),
        "The path of stage 1: the gap, and the error of a ridge probe on the frozen body. The paper's Fig. 3 "
        "has the error of the fine-tuned model, for which `--path` fits again.",
        "the probe's error, points of one run",
    )


def _further(about: Mapping[str, Any], further: FurtherFits) -> list[Block]:
    """Return Fig. 3 and Fig. 2 (d), errors of models fitted from points along stage 1, and Fig. 6."""
    blocks: list[Block] = []
    metric = about["metric"]
    if further.path:
        stops = {stop["name"]: (stop["gap"], stop["validation"]) for stop in further.path}
        blocks += _scatter(
            stops,
            ("semantic gap where stage 1 ends: ω·W₁ + FLD (nats)", f"validation {metric} after stage 2"),
            "Target error against semantic gap (Fig. 3): a whole fit per point, same seed.",
            "the target error, a whole fit each",
        )
        blocks.append(
            Table(
                ["stage 1", Column("semantic gap", 3), Column(metric, 4, "min")],
                [[name, *stop] for name, stop in stops.items()],
                "The same figures (Fig. 2 d): without stage 1, with part of it, and with all.",
                sortable=False,
            )
        )
    if further.sensitivity:
        omegas, values = (list(column) for column in zip(*further.sensitivity, strict=True))
        caption = "Sensitivity to ω: one whole fit per point, same seed."
        blocks.append(_lines(("ω", omegas), {about["method"]: values}, f"validation {metric}", caption))
    return blocks


def _scatter(
    points: Mapping[str, tuple[float, float]], titles: tuple[str, str], caption: str, what: str
) -> list[Block]:
    """Return errors against gaps, with their correlation where there is one."""
    gap, error = (list(column) for column in zip(*points.values(), strict=True))
    labels = {"points": list(points)}
    x_title, y_title = titles
    blocks: list[Block] = [
        figures.scatter(
            {"points": (gap, error)}, x_title=x_title, y_title=y_title, labels=labels, caption=caption
        )
    ]
    if len(gap) >= 3 and np.std(gap) > 0 and np.std(error) > 0:
        pearson = f"**{float(np.corrcoef(gap, error)[0, 1]):.3f}** over {len(gap)} points ({what})"
        blocks.append(Text(f"Pearson correlation of gap and error: {pearson}."))
    return blocks


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
        _pairs(["figure", Column("value", 3)], sums, "Terms, sums (nats) and what they are made of."),
        _pairs(["term", "estimator"], bound.estimators, "How each term was found."),
        *(Text(caveat, tone="note") for caveat in bound.caveats),
    ]


def _clouds(adapted: Adapted, source: SourceSide, further: FurtherFits) -> list[Block]:
    """Draw source and target features in one t-SNE plane, one picture per stage."""
    from sklearn.manifold import TSNE  # start-up: only this picture needs it

    every = max(1, len(source.features) // POINTS)
    drawn = source.features[::every][:POINTS].numpy()
    clouds = {
        TITLES.get(name, f"after {name}"): value[:POINTS].numpy() for name, value in adapted.snapshots.items()
    }
    for stop in further.path:
        figure = f"validation {adapted.about['metric']} {stop['validation']:.4f}"
        title = f"after stage 2 of a fit of its own ({stop['name']}), {figure}"
        clouds[title] = further.clouds[stop["name"]][:POINTS].numpy()
    stacked = np.concatenate([drawn, *clouds.values()])
    perplexity = min(30.0, (len(stacked) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(stacked)
    first, *parts = np.split(plane, np.cumsum([len(drawn), *(len(rows) for rows in clouds.values())])[:-1])
    xy = {title: part.T.tolist() for title, part in zip(clouds, parts, strict=True)}
    return [
        figures.scatter(
            {"source": tuple(first.T.tolist()), "target": tuple(points)},
            x_title="t-SNE 1",
            y_title="t-SNE 2",
            caption=f"Pooled features, {title}; one plane for all pictures.",
        )
        for title, points in xy.items()
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
        accuracy = {"held-out accuracy": [row[1] for row in rows]}
        caption = "What a smaller Lipschitz constant costs the source."
        blocks.append(_lines(("ω", [row[0] for row in rows]), accuracy, "accuracy on the proxy", caption))
    return blocks
