"""RECRAFT in its own setting, NAS-Bench-360: RoBERTa-base and Swin-base on eight of its ten tasks.

Tables 2, 4 and 7 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship_suites.materials.hub import data
from transship_suites.recraft.paper import METHODS, ROBERTA, SETTING, SWIN, common_needs, measured
from transship_suites.recraft.rows import PAPER, figures, rows
from transship_suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Measurement,
    Need,
    Options,
    Scale,
    Suite,
    Table,
    cell,
    product,
)

_POINT: dict[str, Any] = {"kind": "classification", "fld_epochs": 4, "epochs": 60}
# Table 8; `shape` is of one input and says what the arrays hold
TASKS: dict[str, dict[str, Any]] = {
    "darcy": {
        "kind": "dense",
        "shape": "3×85×85, y 85×85",
        "backbone": "swin",
        "batch": 4,
        "epochs": 100,
        "rate": 1e-3,
        "decay": 5e-3,
        "fld_epochs": 4,
    },
    "deepsea": {
        "kind": "multilabel",
        "shape": "4×1000, y 36 of 0 and 1",
        "backbone": "roberta",
        "batch": 16,
        "epochs": 13,
        "rate": 1e-5,
        "decay": 0.0,
        "fld_epochs": 2,
        "settings": {"tokens": 512},
    },
    "ecg": {
        **_POINT,
        "shape": "1×1000, y 0 to 3",
        "backbone": "roberta",
        "batch": 4,
        "epochs": 15,
        "accumulation": 16,
        "rate": 1e-6,
        "decay": 0.1,
        "fld_epochs": 2,
        "settings": {"tokens": 64},
    },
    "cifar100": {
        **_POINT,
        "hub": "uoft-cs/cifar100",
        "config": "cifar100",
        "column": "img",
        "label": "fine_label",
        "shape": "3×32×32",
        "backbone": "swin",
        "batch": 32,
        "accumulation": 32,
        "rate": 1e-4,
        "decay": 1e-3,
    },
    "satellite": {
        **_POINT,
        "shape": "1×46, y 0 to 23",
        "backbone": "roberta",
        "batch": 16,
        "accumulation": 4,
        "rate": 3e-5,
        "decay": 3e-6,
    },
    "spherical": {
        **_POINT,
        "shape": "3×60×60, y 0 to 99",
        "backbone": "swin",
        "batch": 32,
        "accumulation": 4,
        "rate": 1e-4,
        "decay": 0.1,
    },
    "ninapro": {
        **_POINT,
        "shape": "1×16×52, y 0 to 17",
        "backbone": "swin",
        "batch": 32,
        "rate": 1e-4,
        "decay": 1e-5,
    },
    "fsd50k": {
        "kind": "multilabel",
        "shape": "1×96×102, y 200 of 0 and 1",
        "backbone": "swin",
        "batch": 32,
        "epochs": 100,
        "rate": 1e-4,
        "decay": 5e-5,
        "fld_epochs": 4,
    },
}
# task → heading, the metric of its column, and whether it is shown as per cent
_SHOWN: dict[str, tuple[str, str, bool]] = {
    "darcy": ("Darcy, relative ℓ2", "relative_l2", False),
    "deepsea": ("DeepSEA, 1 − AUROC", "auroc_error", False),
    "ecg": ("ECG, 1 − F1", "f1_error", False),
    "cifar100": ("CIFAR100, error", "error", True),
    "satellite": ("Satellite, error", "error", True),
    "spherical": ("Spherical, error", "error", True),
    "ninapro": ("NinaPro, error", "error", True),
    "fsd50k": ("FSD50K, 1 − mAP", "map_error", False),
}
_SOURCE = (
    "nb360.ml.cmu.edu, as $TRANSSHIP_DATA/nasbench360/{name}.npz: x_train, y_train, x_test, y_test, x {shape}"
)


def cases(options: Options) -> list[dict[str, Any]]:
    """Return every method on every task."""
    return product(task=list(options["tasks"]), method=options["methods"])


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one method on one task: methods of a seed share rows and first weights."""
    from transship_suites.materials.targets import array_task

    name, options = str(case["task"]), context.options
    about = options["tasks"][name]
    seed = context.seed("rows", name) % 2**32
    task = array_task(name, about, rows=options["rows"], test=options["test"], seed=seed)
    yield from measured(task, str(case["method"]), about, context)


def needs(options: Options) -> list[Need]:
    """Return backbones, proxies and the tasks' arrays."""
    return [
        *common_needs(options),
        *(
            data(about["hub"], f"{about['config']}/SPLIT-*.parquet")
            if "hub" in about
            else Need("data", f"nasbench360/{name}.npz", _SOURCE.format(name=name, shape=about["shape"]))
            for name, about in options["tasks"].items()
        ),
    ]


_TABLE_2 = {
    "nft": (7.4e-3, 0.490, 0.44, 9.74, 13.82, 55.76, 8.35, 0.63),
    "orca": (7.5e-3, 0.291, 0.30, 7.80, 11.63, 29.87, 7.74, 0.56),
    "pare": (7.4e-3, 0.286, 0.28, 6.70, 11.21, 27.04, 7.12, 0.55),
    "mona": (6.8e-3, 0.280, 0.27, 6.48, 11.13, 27.13, 7.28, 0.55),
    "fa": (7.3e-3, 0.290, 0.29, 7.80, 11.61, 29.85, 7.73, 0.57),
    "recraft": (7.2e-3, 0.278, 0.27, 7.30, 11.11, 26.41, 6.60, 0.55),
}
_CLASSES = ("ecg", "cifar100", "satellite", "spherical", "ninapro")


def _error(method: str) -> Any:
    return cell("error", method=method, task=_CLASSES)


suite = Suite(
    title="RECRAFT on NAS-Bench-360, the paper's own setting",
    summary=(
        "RoBERTa-base (CoNLL-2003 as proxy) learns series and Swin-base (CIFAR-10) grids of NAS-Bench-360 by "
        "a new embedder, with the numbers of Table 8. Methods of a seed share rows and first weights; a "
        "tenth of the training rows is held for validation, and the last weights are kept. Metrics are of "
        "the whole test set, FSD50K's per chunk of a clip. A sentence of the proxy counts under the first "
        "name in it; the paper's labels are of words. Cosmic and PSICOV are not here: their masks and "
        "distances need losses and metrics that `adapt` has not, and PSICOV's inputs (57×512² each) do not "
        "fit in memory as arrays."
    ),
    paper=PAPER,
    claims=(
        Claim(
            text="RECRAFT errs less than NFT, mean of the five classifications.",
            quantity=_error("recraft") - _error("nft"),
            at_most=0.0,
            source="Table 2",
        ),
        Claim(
            text="RECRAFT errs less than ORCA, mean of the five classifications.",
            quantity=_error("recraft") - _error("orca"),
            at_most=0.0,
            source="Table 2",
        ),
        Claim(
            text="RECRAFT errs less than alignment alone, mean of the five classifications.",
            quantity=_error("recraft") - _error("fa"),
            at_most=0.0,
            source="Table 7",
        ),
        Claim(
            text="RECRAFT errs less than alignment with a plain supervised warm-up of the same length.",
            quantity=_error("recraft") - _error("fa-warm"),
            at_most=0.0,
            source="ours, a control that the paper lacks",
        ),
    ),
    scales={
        "paper": Scale(
            seeds=5,
            minutes=90000,
            options={
                "backbones": {"roberta": ROBERTA, "swin": SWIN},
                "tasks": TASKS,
                "methods": list(METHODS),
                "rows": None,
                "test": None,
                "stage": {"fa_steps": 60},
                "limits": {},
            },
            needs=needs,
        )
    },
    cases=cases,
    run=run,
    tables=(
        Table(
            title="NAS-Bench-360 (Tables 2, 4 and 7)",
            rows=rows(*METHODS),
            columns=tuple(
                Column(title, cell(metric, task=task), percent=percent, digits=2 if percent else 4)
                for task, (title, metric, percent) in _SHOWN.items()
            ),
            paper=figures(
                {
                    name: dict(zip((one[0] for one in _SHOWN.values()), own, strict=True))
                    for name, own in _TABLE_2.items()
                }
            ),
            paper_source="Tables 2 and 7",
            setting=SETTING,
        ),
        Table(
            title="Seconds of training, mean of the tasks (Figure 8)",
            rows=rows(*METHODS),
            columns=(Column("stage 1", "stage1_seconds", digits=0), Column("both", "seconds", digits=0)),
        ),
    ),
)
