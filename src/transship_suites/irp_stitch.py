"""Zero-shot stitching through the relative space, against direct maps: Table 2, Figs. 2, 3, 6, 7 of IRP."""

from __future__ import annotations

import math
from typing import Any

from transship.report import Figure
from transship.report.figures import heat_map
from transship_suites.irp.declared import ALPHAS, DELTAS, IMAGES, METHODS, OMEGAS, PAPER, claims, table_2
from transship_suites.materials.origins import packaged_data, packaged_models
from transship_suites.runner import (
    Claim,
    Condition,
    Curve,
    Heading,
    MeasuredBy,
    Options,
    PaperTable,
    Quantity,
    Scale,
    Suite,
    SuiteResult,
    cell,
    highest,
)

DATA = (*IMAGES, "trec_questions", "wordnet_supersense", "sms_spam")


def cases(options: Options) -> list[dict[str, Any]]:
    """Return one case per data set, across modalities, for ω and δ, and for the scale of a layer."""
    stitched: list[dict[str, Any]] = [{"part": "stitch", "data": name} for name in options["data"]]
    others = {"cross-modal": "mnist", "sensitivity": "trec_questions", "scale": "trec_questions"}
    return [*stitched, *({"part": part, "data": data} for part, data in others.items())]


def figures(result: SuiteResult) -> list[Figure]:
    """Draw accuracy of every encoder with every head for IRP, with means per encoder and head (Fig. 7)."""
    drawn = []
    stitched: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for done in result.cases:
        if "encoders" in done.attachments:
            where = str(done.case["part"]), str(done.case["data"])
            stitched.setdefault(where, []).append(done.attachments)
    for (part, data), attachments in stitched.items():
        names = attachments[0]["encoders"]
        matrices = [attached["IRP (paper)"] for attached in attachments]
        places = range(len(names))
        mean: list[list[float | None]] = [
            [math.fsum(matrix[i][j] for matrix in matrices) / len(matrices) for j in places] for i in places
        ]
        rows = [[*row, _mean([value for j, value in enumerate(row) if j != i])] for i, row in enumerate(mean)]
        heads = [_mean([mean[i][j] for i in places if i != j]) for j in places]
        what = f"{data}, images and captions" if part == "cross-modal" else data
        drawn.append(
            heat_map(
                [*rows, [*heads, None]],
                rows=[*names, "mean per head"],
                columns=[*names, "mean per encoder"],
                row_title="encoder",
                column_title="head trained on",
                value_title="accuracy",
                caption=f"{what}: IRP with the paper's pruning, mean over seeds; the diagonal is the head on "
                "its own encoder and counts in no mean.",
            )
        )
    return drawn


def _mean(values: list[Any]) -> float:
    return math.fsum(values) / len(values)


def _apart(alpha: float) -> tuple[Quantity, Quantity]:
    """Return how far the last layer at length α is above the model as it is, and below: the higher is the
    distance.
    """
    there = cell("accuracy", part="scale", layer=6, alpha=alpha)
    untouched = cell("accuracy", part="scale", method="not rescaled")
    return there - untouched, untouched - there


_TABLE_2 = table_2(
    "Accuracy over all ordered pairs of encoders (Table 2)",
    [
        *(Condition(name, {"part": "stitch", "data": name}) for name in DATA),
        Condition("mnist images ↔ captions", {"part": "cross-modal", "data": "mnist"}),
    ],
    METHODS,
    {"mnist": "MNIST", "fashion_mnist": "Fashion MNIST", "trec_questions": "TREC"},
    "the paper has five large pretrained vision encoders and four language models; we have small "
    "networks trained here for images, of which two share a width, and the sentence encoders at hand for "
    "text. Its settings of ω and δ are used where it has the data set. Across modalities it has news "
    "articles with their pictures; we have digits and captions that name them, and count only pairs that "
    "cross",
)
_SENSITIVITY = PaperTable(
    title="Sensitivity to δ with 16 subspaces",
    rows=tuple(Condition(f"δ = {delta}", {"delta": delta}) for delta in DELTAS),
    columns=tuple(
        Heading(name, cell(metric, part="sensitivity", omega=16))
        for name, metric in (
            ("similarity between spaces", "similarity"),
            ("similarity within a space", "similarity within"),
            ("accuracy", "accuracy"),
            ("condition number", "condition"),
            ("anchors kept", "anchors"),
        )
    ),
)
_SCALES = PaperTable(
    title="Accuracy when the vectors of a layer are given the length α (minilm-l6 on TREC)",
    rows=(
        *(Condition(f"after layer {layer}", {"part": "scale", "layer": layer}) for layer in (0, 2, 4, 6)),
        Condition("not rescaled", {"part": "scale", "method": "not rescaled"}),
    ),
    columns=(
        *(Heading(f"α = {alpha:g}", cell("accuracy", alpha=alpha)) for alpha in ALPHAS),
        Heading("as they are", cell("accuracy", method="not rescaled")),
    ),
)


def _against_delta(title: str, metric: str, y_title: str) -> Curve:
    return Curve(
        title=title,
        x="delta",
        quantity=cell(metric, part="sensitivity"),
        lines=tuple(Condition(f"ω = {omega}", {"omega": omega}) for omega in OMEGAS),
        x_title="δ",
        y_title=y_title,
    )


suite = Suite(
    title="Zero-shot stitching through the relative space",
    summary=(
        "A head trained on one encoder is used on another, translated by a map that was fitted on anchors "
        "only. All ordered pairs of encoders; absolute uses the head without translation, non-stitch on its "
        "own encoder. IRP (paper) leaves the number of anchors to δ; guarded and completed keep it clear of "
        "the width of the space, where the inverse is at its worst."
    ),
    paper=PAPER.at("Table 2, Figures 2, 3, 6 and 7"),
    claims=(
        *claims("IRP (paper)", (0.15, "Table 2"), "Table 2", part="stitch"),
        Claim(
            text="Heads also work across modalities: IRP classifies images by a head of captions, and back.",
            quantity=cell("accuracy", part="cross-modal", method="IRP (paper)"),
            at_least=0.5,
            source="Section 5.1, Figure 7",
        ),
        Claim(
            text="Many subspaces make up for hard pruning: at δ = 0.8, ω = 16 is more similar than ω = 1.",
            quantity=cell("similarity", part="sensitivity", omega=16, delta=0.8)
            - cell("similarity", part="sensitivity", omega=1, delta=0.8),
            at_least=0.0,
            source="Section 4.1, Figure 3",
        ),
        Claim(
            text="Pruning lowers the condition number: δ = 0.8 has a lower one than δ = 0.4.",
            quantity=cell("condition", part="sensitivity", omega=16, delta=0.4)
            - cell("condition", part="sensitivity", omega=16, delta=0.8),
            at_least=0.0,
            source="Figures 3 and 6",
        ),
        Claim(
            text="The scale of the last layer does not matter: accuracy stays within 0.05 at α = 1 to 100.",
            quantity=highest(*(part for alpha in ALPHAS if alpha >= 1.0 for part in _apart(alpha))),
            at_most=0.05,
            source="Section 4.2, Figure 2",
        ),
    ),
    scales={
        "quick": Scale(
            seeds=3,
            minutes=2,
            options={
                "data": ["digits", "mnist", "trec_questions"],
                "encoders": {
                    "stitch": ["minilm-l3", "minilm-l6", "bge-small"],
                    "sensitivity": ["minilm-l3", "minilm-l6", "bge-small"],
                    "cross-modal": ["minilm-l3", "minilm-l6"],
                },
                "anchors": 768,
                "train": 2000,
                "test": 500,
                "images": 4000,
                "epochs": 6,
            },
        ),
        "full": Scale(
            seeds=5,
            minutes=30,
            options={
                "data": list(DATA),
                "encoders": {
                    "stitch": ["minilm-l3", "minilm-l6", "bge-small", "granite-small", "mpnet-base"],
                    "sensitivity": ["minilm-l3", "minilm-l6", "bge-small"],
                    "cross-modal": ["minilm-l6", "bge-small"],
                },
                "anchors": 1000,
                "train": 2000,
                "test": 500,
                "images": 10000,
                "epochs": 6,
            },
            needs=(
                *packaged_data("fashion_mnist", "sms_spam", "wordnet_supersense-train"),
                *packaged_models("granite-small", "mpnet-base"),
            ),
        ),
    },
    cases=cases,
    run=MeasuredBy("transship_suites.irp.stitch:measured"),
    tables=(_TABLE_2, _SENSITIVITY, _SCALES),
    curves=(
        _against_delta("Reconstruction similarity between spaces", "similarity", "cosine"),
        _against_delta("Reconstruction similarity within a space", "similarity within", "cosine"),
        _against_delta("Accuracy of stitched heads", "accuracy", "accuracy"),
        _against_delta("Condition number of the subspaces", "condition", "condition number"),
    ),
    figures=figures,
    needs=(
        *packaged_data("mnist", "trec_questions"),
        *packaged_models("minilm-l3", "minilm-l6", "bge-small"),
    ),
)
