"""THESEUS in its own setting: eight image sets on CLIP ViT-B/16, ViT-B/16+ and ViT-L/14 of open_clip.

Tables 1 and 3–8 and Figure 2 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from typing import Any

from transship_suites.materials.image_sets import IMAGE_SETS
from transship_suites.materials.origins import gpu, model
from transship_suites.runner import (
    Claim,
    Condition,
    Curve,
    Heading,
    MeasuredBy,
    Need,
    Options,
    PaperTable,
    Quantity,
    Scale,
    Suite,
    cell,
    highest,
    percent,
    printed,
    product,
)
from transship_suites.theseus.declared import BASELINES, COUNTS, EIGHT, PAPER, PRINTED, metric_of

MODELS = {
    "B/16 LAION-2B": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "B/16+ LAION-400M": "timm/vit_base_patch16_plus_clip_240.laion400m_e31",
    "B/16 DataComp-XL": "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K",
    "L/14 DataComp-XL": "laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K",
}
_COMPARED = ["theseus", *BASELINES]
# part → the pair and its rows; batches and shots → the methods that are run with so many
PARTS: dict[str, dict[str, Any]] = {
    "wider": {
        "source": "B/16 LAION-2B",
        "target": "B/16+ LAION-400M",
        "batches": {
            "1": [*_COMPARED, "pad", "random"],
            "2": _COMPARED,
            "5": _COMPARED,
            "10": ["theseus"],
            "20": ["theseus"],
        },
        "shots": {str(shots): ["theseus"] for shots in COUNTS},
        "warm": {"batches": [1, 10], "steps": [0, 50, 100, 150]},
    },
    "narrower": {
        "source": "B/16+ LAION-400M",
        "target": "B/16 DataComp-XL",
        "batches": {str(batches): ["theseus"] for batches in COUNTS},
        "shots": {str(shots): ["theseus"] for shots in COUNTS},
        "align": ["mean", "linear", "grid"],
        "align_batches": [1, 2, 5],
    },
    "same": {
        "source": "B/16 DataComp-XL",
        "target": "B/16 LAION-2B",
        "batches": {"1": ["identity", "transfusion"]},
        "shots": {str(shots): ["gradfix", "theseus"] for shots in COUNTS},
    },
    "deeper": {
        "source": "B/16 DataComp-XL",
        "target": "L/14 DataComp-XL",
        "batches": {"10": ["theseus"]},
    },
}


def cases(options: Options) -> list[dict[str, Any]]:
    """Return every part with every image set."""
    return product(part=list(options["parts"]), task=options["tasks"])


def needs(options: Options) -> list[Need]:
    """Return the models of the parts, the image sets and the card."""
    used = {part[side] for part in options["parts"].values() for side in ("source", "target")}
    models = [model(options["models"][name]) for name in options["models"] if name in used]
    return [gpu(24), *models, *(IMAGE_SETS[task].need for task in options["tasks"])]


_SETTING = "none in models and data; what the paper leaves open is named at the end of the page"
_COLUMNS = (
    *(percent(IMAGE_SETS[task].title, cell("accuracy", task=task), digits=2) for task in EIGHT),
    percent("mean", "accuracy", digits=2),
    percent("gain", "gain", digits=2),
    Heading("α", "strength", digits=2),
)


def _row(part: str, title: str) -> Condition:
    """Return the row of `theseus, B = 5`, `gradfix, K = 2`, `mean, B = 1` (an alignment) or a bound."""
    method, _, count = title.partition(", ")
    where: dict[str, Any] = {"part": part, "method": method}
    if method in ("mean", "linear", "grid"):
        where |= {"method": "theseus", "align": method}
    elif method == "theseus" and count.startswith("B"):
        where["align"] = "auto"  # not one of the alignments that Table 5 compares
    if count:
        where[{"B": "batches", "K": "shots"}[count[0]]] = int(count[4:])
    return Condition(title, where)


def _table(title: str, part: str, source: str, rows: list[str], note: str = "") -> PaperTable:
    names = [*(IMAGE_SETS[task].title for task in EIGHT), "mean"]
    paper = printed({row: PRINTED[part][row] for row in rows if row in PRINTED[part]}, names)
    return PaperTable(
        title=title,
        rows=tuple(_row(part, row) for row in rows),
        columns=_COLUMNS,
        paper=paper,
        paper_source=source,
        setting=_SETTING + note,
    )


def _counted(method: str, letter: str, counts: tuple[int, ...] = COUNTS) -> list[str]:
    return [f"{method}, {letter} = {count}" for count in counts]


_BOUNDS = ["θ_B zero-shot", "θ_B fine-tune", "θ_A fine-tune"]


def _gain(method: str, part: str = "wider", **where: Any) -> Quantity:
    return metric_of("gain", method, part, **where)


suite = Suite(
    title="THESEUS between CLIP ViT-B/16, ViT-B/16+ and ViT-L/14, the paper's own setting",
    summary=(
        "CLIP models of open_clip with zero-shot heads are fine-tuned on eight image sets (2,000 steps of "
        "128 images, AdamW 1e-5, the head frozen), and the update is moved to another CLIP model without "
        "training, with maps from 1 to 20 batches of 32 unlabelled images or 1 to 20 images per class. "
        "Prompts are CLIP's published ones; α is chosen on 400 training rows that nothing else uses."
    ),
    paper=PAPER.at("Tables 1 and 3–8, Figure 2"),
    claims=(
        Claim(
            text="THESEUS with ten batches gains at least 6 points over the wider target, mean of the sets.",
            quantity=_gain("theseus", batches=10),
            at_least=0.06,
            source="Table 1 (+9.59)",
        ),
        Claim(
            text="With five batches it gains at least 4 points more than the best of its baselines.",
            quantity=_gain("theseus", batches=5) - highest(*(_gain(name, batches=5) for name in BASELINES)),
            at_least=0.04,
            source="Table 1 (+7.88 against +1.53)",
        ),
        Claim(
            text="A random update through the same maps gains less than 1 point.",
            quantity=_gain("random-aligned", batches=5),
            at_most=0.01,
            source="Table 1 (+0.16)",
        ),
        Claim(
            text="Between two of one shape THESEUS gains no less than GradFix with 20 images per class.",
            quantity=_gain("theseus", "same", shots=20) - _gain("gradfix", "same", shots=20),
            at_least=0.0,
            source="Table 3 (+15.16 against +13.37)",
        ),
        Claim(
            text="Alignment on the grid of patches gains at least 3 points more than along the sequence.",
            quantity=_gain("theseus", "narrower", align="grid", batches=5)
            - _gain("theseus", "narrower", align="linear", batches=5),
            at_least=0.03,
            source="Table 5 (+8.94 against +2.48)",
        ),
        Claim(
            text="From ViT-B/16 to ViT-L/14 THESEUS gains at least 3 points.",
            quantity=_gain("theseus", "deeper", batches=10),
            at_least=0.03,
            source="Table 4 (+6.61)",
        ),
    ),
    scales={
        "paper": Scale(
            seeds=3,
            minutes=9000,
            options={
                "models": MODELS,
                "parts": PARTS,
                "tasks": list(EIGHT),
                "train": None,
                "test": None,
                "batch": 256,
                "calibration": 32,
                "strengths": [round(0.25 * step, 2) for step in range(21)],
                "tuning": {"steps": 2000, "batch": 128, "rate": 1e-5, "decay": 0.1, "warmup": 200},
            },
            needs=needs,
        )
    },
    cases=cases,
    run=MeasuredBy("transship_suites.theseus.clip:ClipTransports"),
    tables=(
        _table(
            "Narrow to wide by batches (Table 1)",
            "wider",
            "Table 1",
            [
                *_BOUNDS,
                "pad",
                "random",
                *(f"{name}, B = {count}" for count in (1, 2, 5) for name in (*BASELINES, "theseus")),
                *_counted("theseus", "B", (10, 20)),
            ],
        ),
        _table(
            "Narrow to wide by images per class (Table 6)",
            "wider",
            "Table 6",
            [*_BOUNDS, *_counted("theseus", "K")],
        ),
        _table(
            "One shape, other pre-training (Table 3)",
            "same",
            "Table 3",
            [
                *_BOUNDS,
                "identity",
                "transfusion",
                *(f"{name}, K = {count}" for count in COUNTS for name in ("gradfix", "theseus")),
            ],
        ),
        _table("Depth and width (Table 4)", "deeper", "Table 4", [*_BOUNDS, "theseus, B = 10"]),
        _table(
            "Token alignment (Table 5)",
            "narrower",
            "Table 5",
            [
                *_BOUNDS,
                *(f"{align}, B = {count}" for count in (1, 2, 5) for align in ("mean", "linear", "grid")),
            ],
            ". Table 5 does not name its pair: its zero-shot row and its `interpolate2d` rows are those of "
            "Table 8, so it is that pair",
        ),
        _table(
            "Wide to narrow by images per class (Table 7)",
            "narrower",
            "Table 7",
            [*_BOUNDS, *_counted("theseus", "K")],
        ),
        _table(
            "Wide to narrow by batches (Table 8)",
            "narrower",
            "Table 8",
            [*_BOUNDS, *_counted("theseus", "B")],
        ),
    ),
    curves=(
        Curve(
            title="Warm start (Figure 2)",
            x="steps",
            quantity=cell("accuracy", part="wider", method="warm start"),
            lines=tuple(
                Condition(name, {"start": name}) for name in ("θ_B", "THESEUS, B = 1", "THESEUS, B = 10")
            ),
            x_title="fine-tuning steps",
            y_title="accuracy",
        ),
    ),
)
