"""RECRAFT in its own setting, PDEBench: eight equations, RoBERTa-base and Swin-base.

Tables 1, 3, 5 and 6 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from transship_suites.recraft.declared import METHODS, TASKS, TITLES, below, common_needs, paper_suite
from transship_suites.runner import Heading, MeasuredBy, Need, Options, Quantity, cell

EQUATIONS = TASKS["pdebench"]
_SOURCE = "PDEBench, doi:10.18419/darus-2986, as $TRANSSHIP_DATA/pdebench/"


def needs(options: Options) -> list[Need]:
    """Return backbones, proxies, PDEBench's files and what reads them."""
    libraries = ["h5py", *(["neuralop"] if "fno" in options["methods"] else [])]
    files = [about["file"] for about in options["tasks"].values()]
    return [
        *common_needs(options),
        *(Need("library", name, "pip install 'transship[pde]'") for name in libraries),
        *(Need("data", f"pdebench/{file}", f"{_SOURCE}{file}", "CC BY 4.0") for file in files),
    ]


def _error(method: str) -> Quantity:
    return cell("nrmse", method=method, task=tuple(EQUATIONS))


suite = paper_suite(
    "pdebench",
    title="PDEBench (Tables 1, 3, 5 and 6): nRMSE",
    minutes=60000,
    methods=(*METHODS, "fno"),
    columns=tuple(Heading(task, cell("nrmse", task=task), digits=4) for task in EQUATIONS),
    source=f"Tables 1 and 6; {TITLES['fno']}: Table 3",
    mean="equations",
    options={"fno": {"epochs": 200, "width": 64, "modes": 16, "batch": 16}},
    needs=needs,
    about="RECRAFT on PDEBench, the paper's own setting",
    summary=(
        "RoBERTa-base (CoNLL-2003 as proxy) and Swin-base (CIFAR-10) learn eight equations of PDEBench by a "
        "new embedder: the first frame in, a late one out, nine tenths of the rows for training, with the "
        "numbers of Table 9. Methods of a seed share rows and first weights; a tenth of the training rows is "
        "held for validation, and the last weights are kept. Grids and files are those that the paper's "
        "loaders read; diffusion-sorption, a series, goes to RoBERTa. A sentence of the proxy counts under "
        "the first name in it; the paper's labels are of words."
    ),
    claims=below(
        _error,
        "is below {} in nRMSE",
        ", mean of the equations",
        {
            "nft": "Table 1 (0.122 against 0.228)",
            "orca": "Table 1 (0.122 against 0.124)",
            "fa": "Section 4.4",
        },
    ),
    run=MeasuredBy("transship_suites.recraft.paper:measured"),
)
