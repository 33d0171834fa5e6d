"""RECRAFT in its own setting, PDEBench: eight equations, RoBERTa-base and Swin-base.

Tables 1, 3, 5 and 6 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship_suites.recraft.paper import METHODS, ROBERTA, SETTING, SWIN, common_needs, measured
from transship_suites.recraft.rows import PAPER, TITLES, figures, rows
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

_ONE: dict[str, Any] = {"form": "tensor", "frame": -1, "batch": 4, "epochs": 200, "fld_epochs": 4}
_GROUP: dict[str, Any] = {**_ONE, "form": "groups", "in": 0, "out": 0}
# Table 9, and what ORCA's loaders read of which file
TASKS: dict[str, dict[str, Any]] = {
    "Darcy": {
        **_ONE,
        "form": "darcy",
        "file": "2D/2D_DarcyFlow_beta0.1_Train.hdf5",
        "stride": 2,
        "backbone": "swin",
        "epochs": 100,
        "rate": 1e-4,
        "decay": 1e-5,
    },
    "Advection": {
        **_ONE,
        "file": "1D/1D_Advection_Sols_beta0.4.hdf5",
        "stride": 4,
        "backbone": "roberta",
        "rate": 1e-4,
        "decay": 1e-5,
        "settings": {"tokens": 512},
    },
    "Burgers": {
        **_ONE,
        "file": "1D/1D_Burgers_Sols_Nu1.0.hdf5",
        "backbone": "roberta",
        "rate": 1e-5,
        "decay": 1e-5,
        "settings": {"tokens": 128},
    },
    "Diffusion-sorption": {
        **_GROUP,
        "file": "1D/1D_diff-sorp_NA_NA.h5",
        "backbone": "roberta",
        "rate": 1e-4,
        "decay": 0.0,
        "settings": {"tokens": 32},
    },
    "Shallow water": {
        **_GROUP,
        "file": "2D/2D_rdb_NA_NA.h5",
        "backbone": "swin",
        "rate": 1e-4,
        "decay": 0.0,
    },
    "Diffusion-reaction 2D": {
        **_GROUP,
        "out": 1,
        "file": "2D/2D_diff-react_NA_NA.h5",
        "backbone": "swin",
        "rate": 1e-4,
        "decay": 1e-3,
    },
    "Diffusion-reaction 1D": {
        **_ONE,
        "frame": 29,
        "file": "1D/ReacDiff_Nu0.5_Rho1.0.hdf5",
        "backbone": "roberta",
        "rate": 1e-3,
        "decay": 1e-5,
        "settings": {"tokens": 256},
    },
    "Navier-Stokes": {
        **_ONE,
        "form": "fields",
        "fields": ["Vx", "density", "pressure"],
        "file": "1D/1D_CFD_Rand_Eta0.1_Zeta0.1_periodic_Train.hdf5",
        "backbone": "roberta",
        "rate": 1e-4,
        "decay": 1e-3,
        "settings": {"tokens": 128},
    },
}
_SOURCE = "PDEBench, doi:10.18419/darus-2986, as $TRANSSHIP_DATA/pdebench/"


def cases(options: Options) -> list[dict[str, Any]]:
    """Return every method on every equation."""
    return product(task=list(options["tasks"]), method=options["methods"])


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one method on one equation: methods of a seed share rows and first weights."""
    from transship_suites.materials.targets import pde_task

    name, options = str(case["task"]), context.options
    about = options["tasks"][name]
    seed = context.seed("rows", name) % 2**32
    task = pde_task(name, about, rows=options["rows"], test=options["test"], seed=seed)
    if case["method"] == "fno":
        from transship_suites.recraft.operator import fourier_operator

        made = fourier_operator(task, seed=context.seed("fit", name) % 2**31, **options["fno"])
        yield Measurement({"backbone": "none"}, made)
    else:
        yield from measured(task, str(case["method"]), about, context)


def needs(options: Options) -> list[Need]:
    """Return backbones, proxies, PDEBench's files and what reads them."""
    found = [*common_needs(options), Need("library", "h5py", "pip install 'transship[pde]'")]
    if "fno" in options["methods"]:
        found.append(Need("library", "neuralop", "pip install 'transship[pde]'"))
    files = [about["file"] for about in options["tasks"].values()]
    return [*found, *(Need("data", f"pdebench/{file}", f"{_SOURCE}{file}", "CC BY 4.0") for file in files)]


_TABLE_1 = {
    "nft": (0.085, 0.0140, 0.0130, 3.1e-3, 6.1e-3, 0.830, 9.2e-3, 0.863),
    "orca": (0.081, 0.0098, 0.0120, 1.8e-3, 6.0e-3, 0.820, 3.2e-3, 0.066),
    "pare": (0.081, 0.0032, 0.0114, 1.9e-3, 5.9e-3, 0.820, 2.9e-3, 0.068),
    "mona": (0.079, 0.0088, 0.0114, 1.6e-3, 5.7e-3, 0.818, 2.8e-3, 0.054),
    "recraft": (0.079, 0.0078, 0.0108, 1.6e-3, 5.4e-3, 0.817, 2.8e-3, 0.050),
    "fno": (0.22, 0.011, 0.0031, 1.8e-3, 4.4e-3, 0.12, 1.4e-3, 0.068),
}


def _error(method: str, *tasks: str) -> Any:
    return cell("nrmse", method=method, task=tasks or tuple(TASKS))


suite = Suite(
    title="RECRAFT on PDEBench, the paper's own setting",
    summary=(
        "RoBERTa-base (CoNLL-2003 as proxy) and Swin-base (CIFAR-10) learn eight equations of PDEBench by a "
        "new embedder: the first frame in, a late one out, nine tenths of the rows for training, with the "
        "numbers of Table 9. Methods of a seed share rows and first weights; a tenth of the training rows is "
        "held for validation, and the last weights are kept. Grids and files are those that the paper's "
        "loaders read; diffusion-sorption, a series, goes to RoBERTa. A sentence of the proxy counts under "
        "the first name in it; the paper's labels are of words."
    ),
    paper=PAPER,
    claims=(
        Claim(
            text="RECRAFT is below NFT in nRMSE, mean of the equations.",
            quantity=_error("recraft") - _error("nft"),
            at_most=0.0,
            source="Table 1 (0.122 against 0.228)",
        ),
        Claim(
            text="RECRAFT is below ORCA in nRMSE, mean of the equations.",
            quantity=_error("recraft") - _error("orca"),
            at_most=0.0,
            source="Table 1 (0.122 against 0.124)",
        ),
        Claim(
            text="RECRAFT is below alignment alone in nRMSE, mean of the equations.",
            quantity=_error("recraft") - _error("fa"),
            at_most=0.0,
            source="Section 4.4",
        ),
        Claim(
            text="RECRAFT is below alignment with a plain supervised warm-up of the same length.",
            quantity=_error("recraft") - _error("fa-warm"),
            at_most=0.0,
            source="ours, a control that the paper lacks",
        ),
    ),
    scales={
        "paper": Scale(
            seeds=5,
            minutes=60000,
            options={
                "backbones": {"roberta": ROBERTA, "swin": SWIN},
                "tasks": TASKS,
                "methods": [*METHODS, "fno"],
                "rows": None,
                "test": None,
                "stage": {"fa_steps": 60},
                "limits": {},
                "fno": {"epochs": 200, "width": 64, "modes": 16, "batch": 16},
            },
            needs=needs,
        )
    },
    cases=cases,
    run=run,
    tables=(
        Table(
            title="PDEBench (Tables 1, 3, 5 and 6): nRMSE",
            rows=rows(*METHODS, "fno"),
            columns=tuple(Column(task, cell("nrmse", task=task), digits=4) for task in TASKS),
            paper=figures({name: dict(zip(TASKS, own, strict=True)) for name, own in _TABLE_1.items()}),
            paper_source=f"Tables 1 and 6; {TITLES['fno']}: Table 3",
            setting=SETTING,
        ),
        Table(
            title="Seconds of training, mean of the equations (Figure 8)",
            rows=rows(*METHODS, "fno"),
            columns=(Column("stage 1", "stage1_seconds", digits=0), Column("both", "seconds", digits=0)),
        ),
    ),
)
