"""THESEUS in its own setting: eight image sets on CLIP ViT-B/16, ViT-B/16+ and ViT-L/14 of open_clip.

Tables 1 and 3–8 and Figure 2 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship_suites.materials.hub import gpu, model
from transship_suites.materials.image_sets import EIGHT, IMAGE_SETS
from transship_suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Curve,
    Measurement,
    Need,
    Options,
    Paper,
    Row,
    Scale,
    Suite,
    Table,
    cell,
    highest,
    product,
)

MODELS = {
    "B/16 LAION-2B": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "B/16+ LAION-400M": "timm/vit_base_patch16_plus_clip_240.laion400m_e31",
    "B/16 DataComp-XL": "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K",
    "L/14 DataComp-XL": "laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K",
}
BASELINES = ("pinv", "pinv-tikhonov", "random-aligned")
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
        "shots": {str(shots): ["theseus"] for shots in (1, 2, 5, 10, 20)},
        "warm": {"batches": [1, 10], "steps": [0, 50, 100, 150]},
    },
    "narrower": {
        "source": "B/16+ LAION-400M",
        "target": "B/16 DataComp-XL",
        "batches": {str(batches): ["theseus"] for batches in (1, 2, 5, 10, 20)},
        "shots": {str(shots): ["theseus"] for shots in (1, 2, 5, 10, 20)},
        "align": ["mean", "linear", "grid"],
        "align_batches": [1, 2, 5],
    },
    "same": {
        "source": "B/16 DataComp-XL",
        "target": "B/16 LAION-2B",
        "batches": {"1": ["identity", "transfusion"]},
        "shots": {str(shots): ["gradfix", "theseus"] for shots in (1, 2, 5, 10, 20)},
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


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one image set between one pair of models."""
    from transship_suites.theseus.paper import Bench

    yield from Bench(case, context).measured()


def needs(options: Options) -> list[Need]:
    """Return the models of the parts, the image sets and the card."""
    used = {part[side] for part in options["parts"].values() for side in ("source", "target")}
    models = [model(options["models"][name]) for name in options["models"] if name in used]
    return [gpu(24), *models, *(IMAGE_SETS[task].need for task in options["tasks"])]


# Table 1, and the other tables' rows: (row, columns) as printed, in the order of EIGHT, then the mean
_ZERO_WIDE = (50.92, 39.23, 49.63, 64.53, 55.48, 84.53, 57.06, 68.67, 58.76)
_ZERO_XL = (56.69, 62.66, 55.46, 68.51, 58.19, 88.81, 76.47, 72.42, 67.40)
_TUNED_XL = (98.66, 97.70, 98.77, 95.40, 83.29, 92.43, 99.64, 79.91, 93.23)
_PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "wider": {
        "θ_B zero-shot": _ZERO_WIDE,
        "θ_B fine-tune": (98.96, 91.08, 98.63, 92.59, 77.81, 87.65, 99.63, 76.76, 90.39),
        "θ_A fine-tune": (98.69, 97.45, 98.64, 95.65, 82.24, 91.53, 99.61, 79.86, 92.96),
        "pad": (48.82, 38.17, 48.45, 65.14, 54.94, 84.52, 58.52, 69.46, 58.50),
        "random": (50.63, 38.96, 49.65, 65.65, 55.58, 84.56, 57.39, 69.60, 59.00),
        "pinv, B = 1": (14.29, 14.54, 31.66, 54.73, 48.94, 69.61, 40.49, 64.79, 42.38),
        "pinv-tikhonov, B = 1": (47.83, 38.24, 50.23, 63.55, 56.12, 82.29, 54.68, 68.49, 57.68),
        "random-aligned, B = 1": (51.53, 39.49, 49.79, 65.44, 55.53, 84.31, 57.33, 69.61, 59.13),
        "theseus, B = 1": (60.41, 56.80, 56.62, 66.98, 57.23, 84.62, 64.49, 69.60, 64.59),
        "pinv, B = 2": (44.34, 41.92, 48.19, 64.22, 56.43, 77.59, 20.44, 68.88, 52.25),
        "pinv-tikhonov, B = 2": (53.04, 46.23, 50.11, 64.52, 57.18, 81.83, 55.13, 68.76, 59.60),
        "random-aligned, B = 2": (50.96, 39.41, 49.75, 65.60, 55.48, 84.41, 56.62, 69.51, 58.97),
        "theseus, B = 2": (64.03, 59.30, 59.55, 68.12, 57.86, 84.89, 68.97, 70.12, 66.60),
        "pinv, B = 5": (52.25, 44.82, 50.12, 64.24, 56.92, 82.51, 27.72, 69.85, 56.80),
        "pinv-tikhonov, B = 5": (54.51, 46.16, 50.34, 65.53, 57.93, 82.12, 56.97, 68.76, 60.29),
        "random-aligned, B = 5": (50.79, 39.24, 49.69, 65.54, 55.37, 84.26, 56.92, 69.55, 58.92),
        "theseus, B = 5": (63.59, 59.61, 60.46, 68.40, 58.83, 84.85, 67.01, 70.35, 66.64),
        "theseus, B = 10": (65.91, 61.59, 61.23, 68.73, 59.52, 84.93, 74.46, 70.42, 68.35),
        "theseus, B = 20": (67.01, 62.52, 61.01, 69.27, 60.48, 85.04, 76.66, 70.65, 69.08),
        "theseus, K = 1": (60.79, 55.73, 57.39, 67.48, 57.34, 85.02, 61.67, 70.76, 64.52),
        "theseus, K = 2": (61.46, 56.07, 59.03, 68.01, 58.56, 85.06, 68.19, 70.81, 65.90),
        "theseus, K = 5": (64.58, 55.20, 59.05, 69.18, 59.25, 85.17, 77.57, 70.93, 67.62),
        "theseus, K = 10": (65.51, 56.86, 59.72, 69.48, 60.48, 85.16, 76.26, 71.28, 68.09),
        "theseus, K = 20": (66.83, 60.33, 58.25, 70.03, 60.53, 85.51, 78.38, 72.12, 69.00),
    },
    "same": {
        "θ_B zero-shot": (49.41, 50.58, 48.29, 67.98, 55.96, 84.50, 57.10, 68.70, 60.31),
        "θ_B fine-tune": (98.70, 97.45, 98.65, 95.66, 83.19, 88.10, 99.60, 77.20, 92.32),
        "identity": (49.58, 50.84, 49.31, 67.87, 56.27, 84.60, 57.40, 68.90, 60.60),
        "transfusion": (50.12, 67.99, 50.24, 53.26, 56.70, 84.96, 59.26, 69.12, 61.46),
        "gradfix, K = 1": (61.94, 71.07, 60.88, 70.05, 58.32, 87.95, 86.39, 72.67, 71.16),
        "theseus, K = 1": (58.64, 71.38, 60.30, 71.95, 59.79, 88.89, 87.17, 73.08, 71.40),
        "gradfix, K = 2": (65.07, 70.19, 64.33, 71.42, 58.51, 87.15, 88.38, 72.92, 72.25),
        "theseus, K = 2": (65.49, 75.66, 62.67, 72.38, 60.48, 88.85, 91.56, 73.02, 73.76),
        "gradfix, K = 5": (66.05, 73.59, 66.61, 71.57, 60.02, 86.82, 89.06, 72.97, 73.34),
        "theseus, K = 5": (66.12, 72.09, 61.82, 73.33, 61.48, 88.80, 93.03, 73.19, 73.73),
        "gradfix, K = 10": (66.59, 74.82, 66.02, 72.05, 60.18, 86.64, 89.67, 73.18, 73.64),
        "theseus, K = 10": (65.21, 73.95, 63.46, 74.09, 62.29, 88.83, 92.48, 73.21, 74.19),
        "gradfix, K = 20": (67.05, 74.11, 66.42, 72.29, 60.92, 85.99, 89.63, 73.06, 73.68),
        "theseus, K = 20": (68.42, 74.82, 65.73, 74.16, 63.77, 88.92, 94.62, 73.33, 75.47),
    },
    "deeper": {
        "θ_B zero-shot": (68.40, 67.44, 58.96, 71.27, 66.81, 93.01, 86.84, 76.34, 73.63),
        "θ_A fine-tune": _TUNED_XL,
        "θ_B fine-tune": (99.00, 98.22, 98.42, 96.73, 86.88, 94.80, 99.76, 82.94, 94.59),
        "theseus, B = 10": (76.78, 78.34, 73.59, 75.02, 72.71, 93.10, 95.18, 77.16, 80.24),
    },
    "narrower": {
        "θ_B zero-shot": _ZERO_XL,
        "θ_B fine-tune": _TUNED_XL,
        "theseus, K = 1": (62.95, 73.56, 66.99, 71.03, 60.16, 88.79, 83.31, 73.18, 72.50),
        "theseus, K = 2": (68.01, 74.19, 67.19, 70.89, 60.53, 88.91, 88.15, 73.26, 73.89),
        "theseus, K = 5": (68.35, 75.92, 71.20, 72.68, 62.13, 88.92, 92.25, 73.22, 75.58),
        "theseus, K = 10": (73.16, 76.93, 67.63, 73.44, 62.93, 88.89, 91.98, 73.21, 76.02),
        "theseus, K = 20": (70.84, 82.82, 70.63, 73.89, 63.62, 89.03, 94.33, 73.38, 77.32),
        "theseus, B = 1": (66.31, 76.55, 63.57, 70.33, 60.00, 88.86, 88.14, 72.67, 73.30),
        "theseus, B = 2": (70.00, 73.86, 68.38, 72.59, 59.95, 88.85, 88.64, 72.75, 74.38),
        "theseus, B = 5": (71.14, 79.66, 69.78, 72.27, 62.02, 88.95, 93.88, 73.01, 76.34),
        "theseus, B = 10": (71.75, 79.73, 69.58, 72.33, 62.25, 89.00, 94.12, 73.16, 76.49),
        "theseus, B = 20": (72.36, 80.33, 68.58, 74.01, 62.61, 88.97, 94.30, 73.24, 76.80),
        "mean, B = 1": (59.60, 63.21, 55.47, 68.45, 58.33, 88.89, 79.00, 72.53, 68.19),
        "linear, B = 1": (57.96, 62.91, 56.88, 68.75, 58.85, 88.92, 79.33, 72.49, 68.23),
        "grid, B = 1": (66.31, 76.55, 63.57, 70.33, 60.00, 88.86, 88.14, 72.67, 73.30),
        "mean, B = 2": (58.31, 62.96, 56.72, 68.73, 58.39, 88.83, 79.10, 72.47, 68.44),
        "linear, B = 2": (62.94, 63.33, 57.13, 69.03, 58.97, 88.98, 78.66, 72.64, 68.96),
        "grid, B = 2": (70.00, 73.86, 68.38, 72.59, 59.95, 88.85, 88.64, 72.75, 74.38),
        "mean, B = 5": (62.33, 63.20, 58.16, 68.89, 59.41, 88.88, 80.94, 72.88, 69.34),
        "linear, B = 5": (62.31, 64.25, 58.79, 69.71, 59.81, 89.08, 82.27, 72.77, 69.88),
        "grid, B = 5": (71.14, 79.66, 69.78, 72.27, 62.02, 88.95, 93.88, 73.01, 76.34),
    },
}
_SETTING = "none in models and data; what the paper leaves open is named at the end of the page"
_COLUMNS = (
    *(Column(IMAGE_SETS[task].title, cell("accuracy", task=task), percent=True, digits=2) for task in EIGHT),
    Column("mean", "accuracy", percent=True, digits=2),
    Column("gain", "gain", percent=True, digits=2),
    Column("α", "strength", digits=2),
)


def _row(part: str, title: str) -> Row:
    """Return the row of `theseus, B = 5`, `gradfix, K = 2`, `mean, B = 1` (an alignment) or a bound."""
    method, _, count = title.partition(", ")
    where: dict[str, Any] = {"part": part, "method": method}
    if method in ("mean", "linear", "grid"):
        where |= {"method": "theseus", "align": method}
    elif method == "theseus" and count.startswith("B"):
        where["align"] = "auto"  # not one of the alignments that Table 5 compares
    if count:
        where[{"B": "batches", "K": "shots"}[count[0]]] = int(count[4:])
    return Row(title, where)


def _table(title: str, part: str, source: str, rows: list[str], note: str = "") -> Table:
    own = _PAPER[part]
    names = [*(IMAGE_SETS[task].title for task in EIGHT), "mean"]
    paper = {
        (row, name): value for row in rows if row in own for name, value in zip(names, own[row], strict=True)
    }
    return Table(
        title=title,
        rows=tuple(_row(part, row) for row in rows),
        columns=_COLUMNS,
        paper=paper,
        paper_source=source,
        setting=_SETTING + note,
    )


def _counted(method: str, letter: str, counts: tuple[int, ...] = (1, 2, 5, 10, 20)) -> list[str]:
    return [f"{method}, {letter} = {count}" for count in counts]


_BOUNDS = ["θ_B zero-shot", "θ_B fine-tune", "θ_A fine-tune"]
_SHOTS = (1, 2, 5, 10, 20)


def _gain(method: str, part: str = "wider", **where: Any) -> Any:
    return cell("gain", method=method, part=part, **where)


suite = Suite(
    title="THESEUS between CLIP ViT-B/16, ViT-B/16+ and ViT-L/14, the paper's own setting",
    summary=(
        "CLIP models of open_clip with zero-shot heads are fine-tuned on eight image sets (2,000 steps of "
        "128 images, AdamW 1e-5, the head frozen), and the update is moved to another CLIP model without "
        "training, with maps from 1 to 20 batches of 32 unlabelled images or 1 to 20 images per class. "
        "Prompts are CLIP's published ones; α is chosen on 400 training rows that nothing else uses."
    ),
    paper=Paper(
        "Transporting Task Vectors across Different Architectures without Training",
        authors="Rinaldi, Panariello, Salici, Porrello and Calderara",
        where="Tables 1 and 3–8, Figure 2",
    ),
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
    run=run,
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
                *(f"{name}, K = {count}" for count in _SHOTS for name in ("gradfix", "theseus")),
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
            lines=tuple(Row(name, {"start": name}) for name in ("θ_B", "THESEUS, B = 1", "THESEUS, B = 10")),
            x_title="fine-tuning steps",
            y_title="accuracy",
        ),
    ),
)
