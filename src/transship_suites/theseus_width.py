"""THESEUS on small vision transformers: a fine-tune moved to a wider, narrower, equal, deeper or
finer-grained one.

Tables 1 and 3–8 and Figure 2 of the paper, at a size that two cores train in minutes.
"""

from __future__ import annotations

from typing import Any

from transship_suites.materials.origins import SHIFTS, packaged_data
from transship_suites.runner import (
    Claim,
    Condition,
    Curve,
    MeasuredBy,
    Options,
    PaperTable,
    Quantity,
    Scale,
    Suite,
    cell,
    highest,
    product,
)
from transship_suites.theseus.declared import (
    AUTO,
    BOUNDS,
    COLUMNS,
    PAPER,
    PAPER_ROLES,
    SETTING,
    SMALL_BASELINES,
    averages,
    bound_rows,
    finish_claims,
    finish_table,
    metric_of,
    table_by_count,
    table_of_methods,
)


def cases(options: Options) -> list[dict[str, Any]]:
    """Return every part with its tasks."""
    return [case for part, tasks in options["parts"].items() for case in product(part=[part], task=tasks)]


def _share(method: str, part: str = "wider") -> Quantity:
    return metric_of("share", method, part, batches=10)


def _ahead(title: str) -> Quantity:
    """What THESEUS recovers beyond three times the best baseline; `title` makes the rows' names."""
    best = highest(*(_share(title.format(name)) for name in SMALL_BASELINES))
    return _share(title.format("theseus")) - 3 * best


def _best(part: str) -> Quantity:
    """What the best transport with a carried head recovers."""
    carried = ("theseus + carry", "gradient + carry", "4 path steps + carry", "carry alone")
    return highest(*(_share(name, part) for name in carried))


_OURS = (
    "gradient",
    "gradient blend",
    "gradient, 4 path steps",
    "carry alone",
    "theseus + carry",
    "gradient + carry",
    "4 path steps + carry",
)
_SHARES = "Shares are ΔAcc over the 34.20 of θ_A fine-tune"
_TABLE_1 = {"theseus": "theseus, B = 10", "pad": "pad"} | {
    name: f"{name}, B = 5" for name in SMALL_BASELINES if name != "pad"
}
_TABLE_1_SOURCE = (
    "Table 1, column AVG, THESEUS at B = 10; pseudo-inverses and the aligned random update at B = 5, the "
    f"most it has of them. {_SHARES}"
)
_ZERO_SHOT = {"target zero-shot": BOUNDS["target zero-shot"]}


suite = Suite(
    title="THESEUS between small vision transformers of different widths",
    summary=(
        "Two vision transformers (widths 64 and 96, four blocks, 28×28 pixels in 7×7 patches) are "
        "pre-trained apart on MNIST and Fashion-MNIST, one is fine-tuned on a shifted task with its head "
        "frozen, and the update is moved to the other without training. Strengths are chosen on 250 labelled "
        "validation images of the training data; accuracy is of 1,000 test images."
    ),
    paper=PAPER.at("Tables 1 and 3–8, Figure 2"),
    claims=(
        Claim(
            text="THESEUS with ten batches recovers at least 22 % of the source's gain in a wider model.",
            quantity=_share("theseus"),
            at_least=0.22,
            source="Table 1 (28 %)",
        ),
        Claim(
            text=(
                "Where all methods move what the paper moves, THESEUS recovers at least three times as much "
                "as pseudo-inverses, padding and random updates."
            ),
            quantity=_ahead(PAPER_ROLES),
            at_least=0.0,
            source="Table 1 (6 times)",
        ),
        Claim(
            text="So it does where all of them move patches, positions and heads as well, our default.",
            quantity=_ahead("{}"),
            at_least=0.0,
            source="ours",
        ),
        Claim(
            text="Output maps from gradients recover at least 30 %.",
            quantity=highest(_share("gradient"), _share("gradient blend")),
            at_least=0.30,
            source="ours",
        ),
        Claim(
            text="In four path steps they recover at least 42 %.",
            quantity=_share("gradient, 4 path steps"),
            at_least=0.42,
            source="ours",
        ),
        Claim(
            text="A random update through the same maps recovers under 3 %.",
            quantity=_share("random-aligned"),
            at_most=0.03,
            source="Table 1 (1 %)",
        ),
        Claim(
            text="With a carried head on 1,000 unlabelled inputs the best transport recovers at least 80 %.",
            quantity=_best("wider"),
            at_least=0.80,
            source="ours",
        ),
        Claim(
            text="From wide to narrow the best transport with a carried head recovers at least 68 %.",
            quantity=_best("narrower"),
            at_least=0.68,
            source="ours",
        ),
        *finish_claims("wider", "narrow to wide"),
        *finish_claims("narrower", "wide to narrow"),
    ),
    scales={
        "quick": Scale(
            seeds=2,
            minutes=7.5,
            options={
                "pretrain": 1500,
                "tune": 250,
                "parts": {"wider": ["rotation", "noise"], "narrower": ["rotation", "noise"]},
                "batches": [],
                "shots": [],
                "warm": [],
            },
        ),
        "full": Scale(
            seeds=3,
            minutes=95,
            options={
                "pretrain": 1500,
                "tune": 250,
                # claims rest on eight tasks; the other tables show three
                "parts": {
                    "wider": list(SHIFTS),
                    "narrower": list(SHIFTS),
                    "budget": ["rotation", "noise", "shear"],
                    "same": ["rotation", "noise", "shear"],
                    "deeper": ["rotation", "noise", "shear"],
                    "finer": ["rotation", "noise", "shear"],
                },
                "batches": [1, 2, 5, 10, 20],
                "shots": [1, 2, 5, 10, 20],
                "warm": [0, 10, 25, 50, 100],
            },
        ),
    },
    cases=cases,
    run=MeasuredBy("transship_suites.theseus.small:SmallTransports"),
    tables=(
        table_of_methods(
            "Narrow to wide, eight tasks",
            "wider",
            ("theseus", *SMALL_BASELINES, "random", *_OURS),
            {"random": "random", **_TABLE_1},
            paper_source=_TABLE_1_SOURCE,
            setting=f"{SETTING}. The paper's rows leave patches, positions and heads unmoved",
        ),
        table_of_methods(
            "Narrow to wide, eight tasks, moving what the paper moves",
            "wider",
            tuple(PAPER_ROLES.format(name) for name in ("theseus", *SMALL_BASELINES)),
            {PAPER_ROLES.format(name): theirs for name, theirs in _TABLE_1.items()},
            paper_source=_TABLE_1_SOURCE,
            setting=SETTING,
        ),
        PaperTable(
            title="Narrow to wide, three tasks: choices and controls",
            rows=tuple(
                Condition(name, {"method": name, "part": "budget"})
                for name in (
                    *BOUNDS,
                    "pinv-tikhonov per side",
                    "theseus, strength without labels",
                    "gradient blend, strength without labels",
                    PAPER_ROLES.format("theseus"),
                    "gradient + carry",
                    "gradient + carry, kept",
                    AUTO,
                    f"{AUTO}, its control",
                    "40 training steps on pseudo-labels",
                    "160 training steps on pseudo-labels",
                    "ridge head on 1000 true labels",
                )
            ),
            columns=COLUMNS,
            paper=averages("wider", {**BOUNDS, PAPER_ROLES.format("theseus"): "theseus, B = 10"}),
            paper_source=f"Table 1, column AVG, THESEUS at B = 10. {_SHARES}",
            setting=SETTING,
        ),
        table_of_methods(
            "Wide to narrow",
            "narrower",
            ("theseus", *SMALL_BASELINES, *_OURS),
            {"theseus": "theseus, B = 10"},
            paper_source=(
                "Table 8, column AVG, B = 10 (Table 7 has 76.02 with ten images per class). Neither has the "
                "source's fine-tune: it is θ_B fine-tune of Table 1, the same B/16+ (90.39), and shares are "
                "ΔAcc over the 22.99 by which it exceeds θ_B zero-shot"
            ),
            setting=f"{SETTING}. The paper's narrow target is of DataComp-XL, its narrow source of LAION-2B",
        ),
        finish_table("Narrow to wide, finished without a label, eight tasks", "wider"),
        finish_table("Wide to narrow, finished without a label, eight tasks", "narrower"),
        table_of_methods(
            "One shape, other pre-training",
            "same",
            (
                "identity",
                "transfusion, shared residual",
                "transfusion, segments",
                "gradfix",
                "gradfix of a random update",
                "gradfix on theseus",
                "theseus",
                "gradient blend",
            ),
            {"identity": "identity", "transfusion, segments": "transfusion"}
            | {"gradfix": "gradfix, K = 20", "theseus": "theseus, K = 20"},
            paper_source=(
                "Table 3, column AVG, GradFix and THESEUS at K = 20. It lacks the source's fine-tune; that "
                "of the same B/16 is θ_A fine-tune of Table 4 (93.23), and shares are ΔAcc over the 32.92 by "
                "which it exceeds θ_B zero-shot"
            ),
            setting=(
                f"{SETTING}. K is per class; our ten batches are 320 inputs of 20 classes, 16 of each, to "
                "which K = 20 is the nearest"
            ),
        ),
        PaperTable(
            title="Four blocks to six",
            rows=(
                *bound_rows("deeper"),
                *(
                    Condition(f"{method}, {depth}", {"method": method, "part": "deeper", "depth": depth})
                    for method in ("theseus", "gradient blend")
                    for depth in ("interpolate", "nearest", "skip")
                ),
            ),
            columns=COLUMNS,
            paper=averages(
                "deeper",
                {
                    **_ZERO_SHOT,
                    "source fine-tuned": "θ_A fine-tune",
                    "theseus, interpolate": "theseus, B = 10",
                },
            ),
            paper_source="Table 4, column AVG, B = 10. The share is ΔAcc over the 19.60 of θ_A fine-tune",
            setting=f"{SETTING}. The paper goes from the 12 blocks of B/16 to the 24 of L/14",
        ),
        PaperTable(
            title="Token alignment, 7×7 to 4×4 patches",
            rows=(
                *bound_rows("finer"),
                *(
                    Condition(
                        f"{align}, {batches} batches",
                        {"method": "theseus", "part": "finer", "align": align, "batches": batches},
                    )
                    for batches in (1, 2, 5)
                    for align in ("mean", "linear", "grid")
                ),
            ),
            columns=COLUMNS,
            paper=averages(
                "narrower",
                {
                    f"{align}, {batches} batches": f"{align}, B = {batches}"
                    for align in ("mean", "linear", "grid")
                    for batches in (1, 2, 5)
                }
                | {**_ZERO_SHOT, "target fine-tuned": "θ_B fine-tune"},
            ),
            paper_source=(
                "Table 5, column AVG (mean, interpolate, interpolate2d). It does not name its models; its "
                "zero-shot row and its interpolate2d rows are those of Table 8, so that shares are ΔAcc over "
                "22.99, as there"
            ),
            setting=(
                f"{SETTING}. The paper's figures are from wide to narrow, from 225 patches to 196; ours "
                "from narrow to wide, from 16 patches to 49"
            ),
        ),
        table_by_count(
            "Calibration batches, three tasks",
            "budget",
            "wider",
            ("theseus, B", "pinv, B"),
            paper_source=f"Table 1, column AVG. {_SHARES}",
        ),
        table_by_count(
            "Examples per class, three tasks",
            "budget",
            "wider",
            ("theseus, K",),
            paper_source=f"Table 6, column AVG. {_SHARES}",
        ),
        table_by_count(
            "Wide to narrow by batches and by examples per class",
            "narrower",
            "narrower",
            ("theseus, B", "theseus, K"),
            paper_source="Tables 8 and 7, column AVG. Shares are ΔAcc over 22.99, as above",
        ),
        table_by_count(
            "One shape by examples per class, three tasks",
            "same",
            "same",
            ("gradfix, K", "theseus, K"),
            paper_source="Table 3, column AVG. Shares are ΔAcc over 32.92, as above",
        ),
    ),
    curves=(
        Curve(
            title="Share of the gain by calibration batches, three tasks",
            x="batches",
            quantity=cell("share", part="budget"),
            lines=(Condition("theseus", {"method": "theseus"}), Condition("pinv", {"method": "pinv"})),
            x_title="batches of 32 inputs",
            y_title="share of the source's gain",
            log_x=True,
        ),
        Curve(
            title="Warm start, three tasks",
            x="steps",
            quantity=cell("accuracy", part="budget", method="warm start"),
            lines=(
                Condition("from the target", {"start": "from the target"}),
                Condition("from the transported start", {"start": "from the transported start"}),
            ),
            x_title="fine-tuning steps",
            y_title="accuracy",
        ),
    ),
    needs=packaged_data("mnist", "fashion_mnist"),
)
