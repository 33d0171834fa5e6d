"""RECRAFT from pictures to other grids: spectrograms, road signs and Darcy flow.

Tables 1, 2 and 7 of the paper with a vision transformer of 200,000 parameters that knows digits and clothes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship_suites.materials.grids import GRIDS, NEEDS, base, grid_task, proxy
from transship_suites.materials.series import needs
from transship_suites.materials.small_pictures import NEEDS as PICTURES
from transship_suites.recraft.rows import (
    CORE,
    OTHERS,
    PAPER,
    RAW_NAMES,
    STAGE_ONE,
    figures,
    measured,
    rows,
)
from transship_suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Measurement,
    Options,
    Scale,
    Suite,
    Table,
    cell,
    lowest,
)

BACKBONE = "small ViT"
POINTS = tuple(name for name in GRIDS if name != "darcy")


def cases(options: Options) -> list[dict[str, Any]]:
    """Return every variant's tasks with its parts: raw models and the operator first."""
    found = []
    for variant, own in options["variants"].items():
        for task, parts in own["parts"].items():
            unaided = ["raw", "fno"] if task == "darcy" else ["raw"]
            listed = [("none", part) for part in unaided] + [(BACKBONE, part) for part in parts]
            found += [
                {"variant": variant, "task": task, "backbone": name, "part": part} for name, part in listed
            ]
    return found


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one part on one task: all parts of a seed share rows and first weights."""
    from transship_suites.recraft.operator import missing

    name, part = str(case["task"]), str(case["part"])
    own = context.options["variants"][case["variant"]]
    reason = missing() if part == "fno" else None
    if reason is not None:
        context.attach("skipped", reason)
        return
    size = own["rows"][name] if isinstance(own["rows"], dict) else own["rows"]
    task = grid_task(name, rows=size, test=own["test"], seed=context.seed("rows", name) % 2**32)
    seed = context.seed("fit", name) % 2**31
    settings = {**own["settings"], **own.get(name, {})}
    backbone: Any = None
    if part not in ("raw", "fno"):
        backbone = base(context, int(context.options["pretrain"]))
        settings["proxy"] = proxy()
    yield from measured(task, part, seed=seed, backbone=backbone, options={**own, "settings": settings})


def _error(method: str, task: str, variant: str = "all") -> Any:
    return cell("relative_l2", method=method, task=task, variant=variant)


_METHODS = (*CORE, *OTHERS)
_QUICK = ("nft", "recraft", "fa", "fa-warm")
_FIELD_METHODS = ("nft", "recraft", "fa", "fa-warm", "nft*", "scratch", "orca", "pare", "mona")
_SETTINGS = {"batch_size": 16, "proxy_items": 2000, "learning_rate": 1e-3, "embedder_factor": 2.0}
# the last embedder of stage 1, as in the paper
_RECRAFT = {name: {"select": False} for name in ("recraft", "hybrid")}
_PAPER_7 = {"nft": {"darcy": 7.4e-3}, "fa": {"darcy": 7.3e-3}, "recraft": {"darcy": 7.2e-3}}
_PAPER_1 = {
    "nft": {"darcy": 0.085},
    "orca": {"darcy": 0.081},
    "pare": {"darcy": 0.081},
    "mona": {"darcy": 0.079},
    "recraft": {"darcy": 0.079},
    "fno": {"darcy": 0.22},
}
_SETTING = (
    "the paper adapts Swin-base (ImageNet-22k) with CIFAR-10 as proxy to Darcy flow on 85² (Tables 2 and 7) "
    "or 128² points (Tables 1 and 3); we adapt a ViT of 200,000 parameters that knows MNIST and Fashion-"
    "MNIST to the 16² points of neuraloperator's own file, 1,000 rows. Other coefficients, sizes, backbones: "
    "the figures cannot be compared, only their order"
)
_POINT_COLUMNS = tuple(
    Column(f"{task}, {words}", cell("accuracy", task=task, variant=variant), percent=True, digits=1)
    for variant, words in (("low", "300 rows"), ("all", "all rows"))
    for task in POINTS
)

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
        "and 8 to 60 epochs by scale."
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
                    "all": {
                        "rows": 300,
                        "test": 50,
                        "parts": {"darcy": list(_QUICK)},
                        "settings": {**_SETTINGS, "epochs": 10},
                        "methods": _RECRAFT,
                        "fno": {"epochs": 10},
                        "longer": 1.3,
                    },
                    "low": {
                        "rows": 150,
                        "test": 200,
                        "parts": {name: list(_QUICK) for name in POINTS},
                        "settings": {**_SETTINGS, "epochs": 8},
                        "methods": _RECRAFT,
                        "longer": 1.5,
                    },
                },
            },
        ),
        "full": Scale(
            seeds=5,
            minutes=20,
            options={
                "pretrain": 1500,
                "variants": {
                    "all": {
                        "rows": None,
                        "test": None,
                        "parts": {"darcy": list(_FIELD_METHODS)},
                        "settings": {**_SETTINGS, "epochs": 16},
                        "methods": _RECRAFT,
                        "fno": {"epochs": 30},
                        "longer": 1.15,
                    },
                    "low": {
                        "rows": 300,
                        "test": 400,
                        "parts": {name: list(_METHODS) for name in POINTS},
                        "settings": {**_SETTINGS, "epochs": 20},
                        "methods": _RECRAFT,
                        "longer": 1.4,
                    },
                },
            },
        ),
        "large": Scale(
            seeds=5,
            minutes=1500,
            options={
                "pretrain": 6000,
                "variants": {
                    "all": {
                        "rows": None,
                        "test": None,
                        "parts": {**{name: list(_METHODS) for name in POINTS}, "darcy": list(_FIELD_METHODS)},
                        "settings": {**_SETTINGS, "epochs": 60},
                        "methods": _RECRAFT,
                        "fno": {"epochs": 100, "width": 32},
                        "longer": 1.05,
                    },
                    "low": {
                        "rows": 300,
                        "test": None,
                        "parts": {name: list(_METHODS) for name in POINTS},
                        "settings": {**_SETTINGS, "epochs": 60},
                        "methods": _RECRAFT,
                        "longer": 1.1,
                    },
                },
            },
        ),
    },
    cases=cases,
    run=run,
    tables=(
        Table(
            title="Darcy flow (Tables 1 and 3): relative ℓ2, which is nRMSE for one channel",
            rows=rows(
                *_FIELD_METHODS, "fno", "constant", "ridge", "rocket", backbone=BACKBONE, variant="all"
            ),
            columns=(
                Column("darcy", cell("relative_l2", task="darcy"), digits=4),
                Column("CPU seconds", cell("seconds", task="darcy"), digits=1),
            ),
            paper=figures(_PAPER_1),
            paper_source="Tables 1 and 3, nRMSE",
            setting=_SETTING,
        ),
        Table(
            title="Contributions (Table 7): Darcy flow, relative ℓ2",
            rows=rows("nft", "fa", "recraft", "fa-warm", "rocket", backbone=BACKBONE, variant="all"),
            columns=(Column("darcy", cell("relative_l2", task="darcy"), digits=4),),
            paper=figures(_PAPER_7),
            paper_source="Table 7",
            setting=_SETTING,
        ),
        Table(
            title="Pictures of other things (Table 2): accuracy",
            rows=rows(*_METHODS, *RAW_NAMES, backbone=BACKBONE),
            columns=_POINT_COLUMNS,
        ),
        Table(
            title="Where stage 1 ends on Darcy flow",
            rows=rows("fa", "recraft", "fa-warm", backbone=BACKBONE, task="darcy", variant="all"),
            columns=STAGE_ONE,
        ),
    ),
    needs=(*NEEDS, *PICTURES, *needs("CricketX")),
)
