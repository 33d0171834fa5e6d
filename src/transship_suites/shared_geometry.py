"""Networks trained apart share a geometry: CKA finds corresponding layers, a rotation carries features over.

Digits of scikit-learn, small convolutional networks of several widths; everything is trained here in seconds.
"""

from __future__ import annotations

from typing import Any

from transship.report import Figure
from transship.report.figures import heat_map
from transship_suites.runner import (
    Claim,
    Condition,
    Curve,
    Heading,
    MeasuredBy,
    Need,
    Options,
    Paper,
    PaperTable,
    Scale,
    Suite,
    SuiteResult,
    cell,
    highest,
    percent,
    product,
)

LAYERS = 6
WIDTH = 16  # on which claims are judged: both scales have it
PAIRS = ((WIDTH, WIDTH), (WIDTH // 2, WIDTH), (WIDTH, WIDTH // 2))


def cases(options: Options) -> list[dict[str, Any]]:
    """Return a comparison of layers per width, and a stitching between a pair of widths each way."""
    pairs = [{"part": "stitch", "source": source, "target": target} for source, target in PAIRS]
    return [*product(part=["layers"], width=options["widths"]), *pairs]


def figures(result: SuiteResult) -> list[Figure]:
    """Draw the mean similarity of all pairs of layers, per index, for the width that claims are judged on."""
    chosen = [done for done in result.cases if done.case.factors.get("width") == WIDTH]
    names = [f"layer {layer + 1}" for layer in range(LAYERS)]
    drawn = []
    for index, title in (
        ("cka", "linear CKA"),
        ("cca", "mean CCA correlation"),
        ("regression", "linear regression"),
    ):
        matrices = [done.attachments[index] for done in chosen]
        mean = [
            [sum(matrix[i][j] for matrix in matrices) / len(matrices) for j in range(LAYERS)]
            for i in range(LAYERS)
        ]
        drawn.append(
            heat_map(
                mean,
                rows=names,
                columns=names,
                row_title="first network",
                column_title="second network",
                value_title=title,
                caption=f"{title[0].upper()}{title[1:]} of two networks of width {WIDTH}, mean over seeds.",
                square=True,
            )
        )
    return drawn


def _stitched(method: str, **where: Any) -> Any:
    return cell("accuracy", method=method, source=WIDTH // 2, target=WIDTH, **where)


_INDEXES = (
    Condition("CKA (linear)", {"index": "cka"}),
    Condition("CCA (mean correlation)", {"index": "cca"}),
    Condition("linear regression", {"index": "regression"}),
)
_SETTING = (
    "the paper has ten networks of ten layers on CIFAR-10 and its 10,000 test images, compared in all pairs; "
    f"we have a pair of six-layer networks of width {WIDTH} per seed, on 8×8 digits and 359 test images"
)

suite = Suite(
    title="Networks trained apart share a geometry",
    summary=(
        "Small convolutional networks are trained on scikit-learn's digits from other initial weights. Do "
        "indexes of similarity find the layer of the other network that corresponds? And does one rotation, "
        "fitted on a few unlabelled inputs, carry the last features of one network to the head of another, "
        "of the same or of another width?"
    ),
    paper=Paper(
        "Similarity of Neural Network Representations Revisited",
        authors="Kornblith, Norouzi, Lee and Hinton",
        where="ICML 2019, Table 2 and Figure 6",
        link="https://arxiv.org/abs/1905.00414",
    ),
    claims=(
        Claim(
            text="CKA reliably finds the corresponding layer of a network with other initial weights.",
            quantity=cell("identified", index="cka", width=WIDTH),
            at_least=0.9,
            source="Section 6.1, Table 2",
        ),
        Claim(
            text="CKA finds corresponding layers more often than CCA and linear regression do.",
            quantity=cell("identified", index="cka", width=WIDTH)
            - highest(
                cell("identified", index="cca", width=WIDTH),
                cell("identified", index="regression", width=WIDTH),
            ),
            at_least=0.0,
            source="Section 6.1, Table 2",
        ),
        Claim(
            text="By CKA, the same layer of two networks is more alike than different layers are.",
            quantity=cell("same layer", index="cka", width=WIDTH)
            - cell("other layers", index="cka", width=WIDTH),
            at_least=0.05,
            source="Section 6.1, Figure 2",
        ),
        Claim(
            text="Wider networks are more alike: CKA of the same layer grows from width 4 to 16.",
            quantity=cell("same layer", index="cka", width=WIDTH) - cell("same layer", index="cka", width=4),
            at_least=0.0,
            source="Section 6.2, Figure 6",
        ),
        Claim(
            text="A rotation fitted on 200 unlabelled inputs stitches a narrower network to a wider one's "
            "head at a loss of at most 2 points.",
            quantity=_stitched("native") - _stitched("procrustes", samples=200),
            at_most=0.02,
            source="ours",
        ),
        Claim(
            text="Without the rotation the head is of no use: stitching gains at least 50 points over it.",
            quantity=_stitched("procrustes", samples=200) - _stitched("untranslated"),
            at_least=0.5,
            source="ours",
        ),
    ),
    scales={
        "quick": Scale(
            seeds=3, minutes=0.8, options={"widths": [4, 16], "epochs": 6, "samples": [50, 200, 1000]}
        ),
        "full": Scale(
            seeds=6, minutes=4, options={"widths": [4, 8, 16, 32], "epochs": 10, "samples": [50, 200, 1000]}
        ),
    },
    cases=cases,
    run=MeasuredBy("transship_suites.materials.small_convolutions:measured"),
    tables=(
        PaperTable(
            title="Corresponding layers found",
            rows=_INDEXES,
            columns=(
                percent("layers found", cell("identified", width=WIDTH)),
                Heading("similarity of the same layer", cell("same layer", width=WIDTH)),
                Heading("of other layers", cell("other layers", width=WIDTH)),
            ),
            paper={
                ("CKA (linear)", "layers found"): 99.3,
                ("CCA (mean correlation)", "layers found"): 1.4,
                ("linear regression", "layers found"): 45.4,
            },
            paper_source="Table 2 of Kornblith et al.",
            setting=_SETTING,
        ),
        PaperTable(
            title="Accuracy of the target's head on the source's features",
            rows=(
                Condition("the target's own features", {"method": "native"}),
                Condition("untranslated", {"method": "untranslated"}),
                *(
                    Condition(f"{method}, {samples} inputs", {"method": method, "samples": samples})
                    for method in ("procrustes", "ridge")
                    for samples in (50, 200, 1000)
                ),
            ),
            columns=tuple(
                percent(f"width {source} to {target}", cell("accuracy", source=source, target=target))
                for source, target in PAIRS
            ),
        ),
    ),
    curves=(
        Curve(
            title="Layers found, by width",
            x="width",
            quantity="identified",
            lines=_INDEXES,
            x_title="width of the first layer (channels)",
            y_title="share of layers found",
            log_x=True,
        ),
        Curve(
            title="Accuracy after stitching, by number of inputs",
            x="samples",
            quantity=cell("accuracy", source=WIDTH // 2, target=WIDTH),
            lines=(
                Condition("procrustes", {"method": "procrustes"}),
                Condition("ridge", {"method": "ridge"}),
            ),
            x_title="unlabelled inputs the map was fitted on",
            y_title="accuracy",
            log_x=True,
        ),
    ),
    figures=figures,
    needs=(Need("data", "digits", "comes with scikit-learn", license="CC BY 4.0"),),
)
