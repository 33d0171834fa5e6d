"""IRP in its own setting: pre-trained encoders of images and texts, and the data of Table 2.

Table 2 and Figure 7 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship_suites.materials.hub import CONVERTED, data, gpu, model
from transship_suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Measurement,
    Need,
    Options,
    Paper,
    Row,
    Scale,
    Suite,
    Table,
    cell,
)

IMAGES = (
    "google/vit-base-patch16-224",
    "google/vit-base-patch16-384",
    "timm/vit_base_r50_s16_384.orig_in21k_ft_in1k",
    "timm/rexnet_100.nav_in1k",
    "openai/clip-vit-base-patch32",
)
TEXTS = (
    "google-bert/bert-base-cased",
    "google-bert/bert-base-uncased",
    "google/electra-base-discriminator",
    "FacebookAI/roberta-base",
    "albert/albert-base-v2",
)
_N24 = "github.com/billywzh717/N24News, as $TRANSSHIP_DATA/n24news/SPLIT.parquet with text, image and label"
# row → where it is, its columns, and the paper's ω and δ
DATA: dict[str, dict[str, Any]] = {
    "MNIST": {"hub": "ylecun/mnist", "config": "mnist", "kind": "image", "omega": 8, "delta": 0.65},
    "Fashion MNIST": {
        "hub": "zalando-datasets/fashion_mnist",
        "config": "fashion_mnist",
        "kind": "image",
        "omega": 8,
        "delta": 0.65,
    },
    "CIFAR-10": {
        "hub": "uoft-cs/cifar10",
        "config": "plain_text",
        "kind": "image",
        "column": "img",
        "omega": 8,
        "delta": 0.75,
    },
    "CIFAR-100 (coarse)": {
        "hub": "uoft-cs/cifar100",
        "config": "cifar100",
        "kind": "image",
        "column": "img",
        "label": "coarse_label",
        "omega": 8,
        "delta": 0.70,
    },
    "CIFAR-100 (fine)": {
        "hub": "uoft-cs/cifar100",
        "config": "cifar100",
        "kind": "image",
        "column": "img",
        "label": "fine_label",
        "omega": 8,
        "delta": 0.75,
    },
    "TREC": {
        "hub": f"CogComp/trec@{CONVERTED}",
        "config": "default",
        "kind": "text",
        "label": "coarse_label",
        "omega": 8,
        "delta": 0.70,
    },
    "N24News": {"hub": "n24news", "kind": "text", "column": "text", "omega": 8, "delta": 0.65},
    "N24News, images ↔ texts": {"hub": "n24news", "kind": "both", "omega": 16, "delta": 0.8},
}
METHODS = ("IRP", "procrustes", "ridge")


def cases(options: Options) -> list[dict[str, Any]]:
    """Return one case per row of the table."""
    return [{"data": name} for name in options["data"]]


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Stitch all ordered pairs of encoders and heads on one data set."""
    from transship_suites.irp.paper import measured

    yield from measured(case, context)


def needs(options: Options) -> list[Need]:
    """Return encoders, data, timm where an encoder is one of its, and the card."""
    kinds = {about["kind"] for about in options["data"].values()}
    encoders = [*(options["images"] if kinds & {"image", "both"} else ())]
    encoders += options["texts"] if kinds & {"text", "both"} else ()
    timm = [
        Need("library", name, f"pip install {name}")
        for name in ("timm", "torchvision")
        if any(encoder.startswith("timm/") for encoder in encoders)
    ]
    sets = {about["hub"]: about.get("config") for about in options["data"].values()}
    listed = [
        Need("data", hub, _N24)
        if hub == "n24news"
        else data(hub, f"{config}/SPLIT{'/' if CONVERTED in hub else '-'}*.parquet")
        for hub, config in sets.items()
    ]
    return [gpu(8), *timm, *(model(name) for name in encoders), *listed]


_PAPER = {
    "MNIST": (0.88, 0.10, 0.97),
    "Fashion MNIST": (0.82, 0.10, 0.91),
    "CIFAR-10": (0.92, 0.11, 0.95),
    "CIFAR-100 (coarse)": (0.72, 0.05, 0.88),
    "CIFAR-100 (fine)": (0.62, 0.01, 0.82),
    "TREC": (0.73, 0.22, 0.87),
    "N24News": (0.55, 0.05, 0.70),
}
_ONE = tuple(name for name in DATA if DATA[name]["kind"] != "both")


def _mean(method: str) -> Any:
    return cell("accuracy", method=method, data=_ONE)


suite = Suite(
    title="Zero-shot stitching of pre-trained encoders, the paper's own setting",
    summary=(
        "A linear head is trained on the frozen features of one encoder and used on another's, translated "
        "by a map that was fitted on anchors only: all ordered pairs of five image encoders, and of five "
        "language models. Absolute uses the head without translation, where widths agree; non-stitch uses "
        "it on its own encoder. Checkpoints fit the paper's words and counts: three image encoders of one "
        "width give the 6 pairs that absolute can tackle, five language models of one width its 20. Anchors "
        "are 768, the number of its Figure 3; heads are logistic regressions."
    ),
    paper=Paper(
        "Latent Space Translation via Inverse Relative Projection",
        authors="Maiorca, Moschella, Fumero, Locatello and Rodolà",
        where="Table 2, Figure 7",
    ),
    claims=(
        Claim(
            text="Stitching by IRP keeps most of the accuracy: at most 0.2 is lost on average.",
            quantity=_mean("non-stitch") - _mean("IRP"),
            at_most=0.2,
            source="Table 2 (0.12)",
        ),
        Claim(
            text="IRP gains at least 0.3 over a head that is used without translation.",
            quantity=_mean("IRP") - _mean("absolute"),
            at_least=0.3,
            source="Table 2 (0.66)",
        ),
        Claim(
            text="A direct map (ridge) stitches at least as well as IRP.",
            quantity=_mean("ridge") - _mean("IRP"),
            at_least=0.0,
            source="ours",
        ),
        Claim(
            text="Heads also work across modalities: IRP is at least 0.2 above chance on N24News.",
            quantity=cell("accuracy", method="IRP", data="N24News, images ↔ texts"),
            at_least=0.2 + 1 / 24,
            source="Section 5.1, Figure 7",
        ),
    ),
    scales={
        "paper": Scale(
            seeds=5,
            minutes=900,
            options={
                "images": list(IMAGES),
                "texts": list(TEXTS),
                "data": DATA,
                "anchors": 768,
                "anchors across": 1000,
                "train": None,
                "test": None,
                "batch": 64,
            },
            needs=needs,
        )
    },
    cases=cases,
    run=run,
    tables=(
        Table(
            title="Accuracy over all ordered pairs of encoders (Table 2)",
            rows=tuple(Row(name, {"data": name}) for name in DATA),
            columns=(
                Column("zero-shot: IRP", cell("accuracy", method="IRP")),
                Column("absolute", cell("accuracy", method="absolute")),
                Column("non-stitch", cell("accuracy", method="non-stitch")),
                *(Column(name, cell("accuracy", method=name)) for name in METHODS[1:]),
                Column("pairs", cell("available", method="absolute"), digits=0),
                Column("of these absolute can", cell("achievable", method="absolute"), digits=0),
            ),
            paper={
                (row, column): value
                for row, own in _PAPER.items()
                for column, value in zip(("zero-shot: IRP", "absolute", "non-stitch"), own, strict=True)
            },
            paper_source="Table 2",
            setting=(
                "none in data; what the paper leaves open, its checkpoints among it, is named at the end "
                "of the page. Figure 7 prints no numbers"
            ),
        ),
    ),
)
