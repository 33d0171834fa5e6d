"""RECRAFT from pictures to other grids: spectrograms, road signs and Darcy flow.

Tables 1, 2 and 7 of the paper with a vision transformer of 200,000 parameters that knows digits and clothes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transship_suites.materials.origins import GRIDS, packaged_data, ucr_data
from transship_suites.recraft.declared import CORE, OTHERS, PAPER, RAW_NAMES, STAGE_ONE, paper_figures, rows
from transship_suites.runner import (
    Claim,
    Heading,
    MeasuredBy,
    Options,
    PaperTable,
    Scale,
    Suite,
    cell,
    lowest,
    percent,
)

BACKBONE = "small ViT"
POINTS = tuple(name for name in GRIDS if name != "darcy")


def cases(options: Options) -> list[dict[str, Any]]:
    """Return every variant's tasks with its parts: raw models and the operator first."""
    listed = []
    for variant, own in options["variants"].items():
        for task, parts in own["parts"].items():
            unaided = ["raw", "fno"] if task == "darcy" else ["raw"]
            pairs = [("none", part) for part in unaided] + [(BACKBONE, part) for part in parts]
            listed += [
                {"variant": variant, "task": task, "backbone": name, "part": part} for name, part in pairs
            ]
    return listed


def _error(method: str, task: str, variant: str = "all") -> Any:
    return cell("relative_l2", method=method, task=task, variant=variant)


_METHODS = (*CORE, *OTHERS)
_QUICK = ("nft", "recraft", "fa", "fa-warm")
_FIELD_METHODS = ("nft", "recraft", "fa", "fa-warm", "nft*", "scratch", "orca", "pare", "mona")
_SETTINGS = {"batch_size": 16, "proxy_items": 2000, "learning_rate": 1e-3, "embedder_factor": 2.0}
# the last embedder of stage 1, as in the paper
_RECRAFT = {name: {"select": False} for name in ("recraft", "hybrid")}
_SETTING = (
    "the paper adapts Swin-base (ImageNet-22k) with CIFAR-10 as proxy to Darcy flow on 85² (Tables 2 and 7) "
    "or 128² points (Tables 1 and 3); we adapt a ViT of 200,000 parameters that knows MNIST and Fashion-"
    "MNIST to the 16² points of neuraloperator's own file, 1,000 rows. Other coefficients, sizes, backbones: "
    "the figures cannot be compared, only their order"
)
_POINT_COLUMNS = tuple(
    percent(f"{task}, {words}", cell("accuracy", task=task, variant=variant))
    for variant, words in (("low", "300 rows"), ("all", "all rows"))
    for task in POINTS
)

_FIELD_PARTS, _POINT_PARTS = {"darcy": _FIELD_METHODS}, dict.fromkeys(POINTS, _METHODS)


def _variant(
    rows: int | None,
    test: int | None,
    parts: Mapping[str, Sequence[str]],
    *,
    epochs: int,
    longer: float,
    **more: Any,
) -> dict[str, Any]:
    """Return what a variant runs: how many rows, the methods of each task, and how long."""
    return {
        "rows": rows,
        "test": test,
        "parts": {task: list(methods) for task, methods in parts.items()},
        "settings": {**_SETTINGS, "epochs": epochs},
        "methods": _RECRAFT,
        "longer": longer,
        **more,
    }


suite = Suite(
    title="RECRAFT from a small vision transformer to other grids",
    summary=(
        "A vision transformer (width 64, four blocks, 7×7 patches of 28×28 pixels) is pre-trained once on "
        "MNIST and Fashion-MNIST, and learns spectrograms of CricketX, road signs and Darcy flow by a new "
        "embedder. Its source is a linear head on 2,000 pictures of its own twenty classes. Rows of a seed "
        "share their split and, but for those from random weights, their first weights; nothing is chosen "
        "on test rows. All keep their last weights and train everything under a linear head in stage 2, but "
        "for the row on the best raw model, which keeps the weights of the best validation. The default of "
        "`adapt fit` is not measured: it chooses the embedder of stage 1 (`select` yes) and the way of stage "
        "2 on validation rows, and has a rate of 0.0002, ten times that for embedder and head, and 8 to 30 "
        "epochs. Here RECRAFT, alone and on the best raw model, takes the "
        "last embedder (`select` no), and every row has a rate of 0.001, twice that for embedder and head, "
        "and 8 to 20 epochs by scale."
    ),
    paper=PAPER,
    claims=(
        Claim(
            text="On Darcy flow RECRAFT is below ridge regression on raw values (relative ℓ2).",
            quantity=_error("recraft", "darcy") - _error("ridge", "darcy"),
            at_most=0.0,
            source="ours",
        ),
        Claim(
            text="On Darcy flow RECRAFT is below NFT (relative ℓ2).",
            quantity=_error("recraft", "darcy") - _error("nft", "darcy"),
            at_most=0.0,
            source="Table 7",
        ),
        Claim(
            text="With 300 rows RECRAFT is at least 2 points above NFT, mean of spectrograms and signs.",
            quantity=cell("accuracy", method="recraft", task=POINTS, variant="low")
            - cell("accuracy", method="nft", task=POINTS, variant="low"),
            at_least=0.02,
            source="ours, after Table 7",
        ),
        Claim(
            text="On Darcy flow RECRAFT is below the Fourier neural operator (relative ℓ2).",
            quantity=_error("recraft", "darcy") - lowest(_error("fno", "darcy")),
            at_most=0.0,
            source="Table 3",
        ),
    ),
    scales={
        "quick": Scale(
            seeds=2,
            minutes=2,
            options={
                "pretrain": 1500,
                "variants": {
                    "all": _variant(300, 50, {"darcy": _QUICK}, epochs=10, longer=1.3, fno={"epochs": 10}),
                    "low": _variant(150, 200, dict.fromkeys(POINTS, _QUICK), epochs=8, longer=1.5),
                },
            },
        ),
        "full": Scale(
            seeds=5,
            minutes=20,
            options={
                "pretrain": 1500,
                "variants": {
                    "all": _variant(None, None, _FIELD_PARTS, epochs=16, longer=1.15, fno={"epochs": 30}),
                    "low": _variant(300, 400, _POINT_PARTS, epochs=20, longer=1.4),
                },
            },
        ),
    },
    cases=cases,
    run=MeasuredBy("transship_suites.recraft.measure:measured_grid"),
    tables=(
        PaperTable(
            title="Darcy flow (Tables 1 and 3): relative ℓ2, which is nRMSE for one channel",
            rows=rows(
                *_FIELD_METHODS, "fno", "constant", "ridge", "rocket", backbone=BACKBONE, variant="all"
            ),
            columns=(
                Heading("darcy", cell("relative_l2", task="darcy"), digits=4),
                Heading("CPU seconds", cell("seconds", task="darcy"), digits=1),
            ),
            paper=paper_figures("pdebench", {"darcy": "Darcy"}),
            paper_source="Tables 1 and 3, nRMSE",
            setting=_SETTING,
        ),
        PaperTable(
            title="Contributions (Table 7): Darcy flow, relative ℓ2",
            rows=rows("nft", "fa", "recraft", "fa-warm", "rocket", backbone=BACKBONE, variant="all"),
            columns=(Heading("darcy", cell("relative_l2", task="darcy"), digits=4),),
            paper=paper_figures("nasbench360", {"darcy": "darcy"}, "nft", "fa", "recraft"),
            paper_source="Table 7",
            setting=_SETTING,
        ),
        PaperTable(
            title="Pictures of other things (Table 2): accuracy",
            rows=rows(*_METHODS, *RAW_NAMES, backbone=BACKBONE),
            columns=_POINT_COLUMNS,
        ),
        PaperTable(
            title="Where stage 1 ends on Darcy flow",
            rows=rows("fa", "recraft", "fa-warm", backbone=BACKBONE, task="darcy", variant="all"),
            columns=STAGE_ONE,
        ),
    ),
    needs=(
        *packaged_data("gtsrb_32", "pde_darcy_train_16", "pde_darcy_test_16", "mnist", "fashion_mnist"),
        *ucr_data("CricketX"),
    ),
)
