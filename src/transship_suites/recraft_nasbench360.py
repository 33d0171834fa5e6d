"""RECRAFT in its own setting, NAS-Bench-360: RoBERTa-base and Swin-base on eight of its ten tasks.

Tables 2, 4 and 7 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from transship_suites.materials.origins import data
from transship_suites.recraft.declared import below, common_needs, paper_suite
from transship_suites.runner import Heading, MeasuredBy, Need, Options, Quantity, cell

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


_CLASSES = ("ecg", "cifar100", "satellite", "spherical", "ninapro")


def _error(method: str) -> Quantity:
    return cell("error", method=method, task=_CLASSES)


suite = paper_suite(
    "nasbench360",
    title="NAS-Bench-360 (Tables 2, 4 and 7)",
    minutes=90000,
    columns=tuple(
        Heading(title, cell(metric, task=task), percent=percent, digits=2 if percent else 4)
        for task, (title, metric, percent) in _SHOWN.items()
    ),
    source="Tables 2 and 7",
    mean="tasks",
    options={},
    needs=needs,
    about="RECRAFT on NAS-Bench-360, the paper's own setting",
    summary=(
        "RoBERTa-base (CoNLL-2003 as proxy) learns series and Swin-base (CIFAR-10) grids of NAS-Bench-360 by "
        "a new embedder, with the numbers of Table 8. Methods of a seed share rows and first weights; a "
        "tenth of the training rows is held for validation, and the last weights are kept. Metrics are of "
        "the whole test set, FSD50K's per chunk of a clip. A sentence of the proxy counts under the first "
        "name in it; the paper's labels are of words. Cosmic and PSICOV are not here: their masks and "
        "distances need losses and metrics that `adapt` has not, and PSICOV's inputs (57×512² each) do not "
        "fit in memory as arrays."
    ),
    claims=below(
        _error,
        "errs less than {}",
        ", mean of the five classifications",
        {"nft": "Table 2", "orca": "Table 2", "fa": "Table 7"},
    ),
    run=MeasuredBy("transship_suites.recraft.paper:measured"),
)
