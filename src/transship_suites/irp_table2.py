"""IRP in its own setting: pre-trained encoders of images and texts, and the data of Table 2.

Table 2 and Figure 7 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from typing import Any

from transship_suites.irp.declared import ABOUT, PAPER, claims, table_2
from transship_suites.materials.origins import CONVERTED, data, gpu, model
from transship_suites.runner import Claim, Condition, MeasuredBy, Need, Options, Scale, Suite, cell

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
DATA: dict[str, dict[str, Any]] = ABOUT["data"]
METHODS = ("IRP", "procrustes", "ridge")


def cases(options: Options) -> list[dict[str, Any]]:
    """Return one case per row of the table."""
    return [{"data": name} for name in options["data"]]


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


_ONE = tuple(name for name in DATA if DATA[name]["kind"] != "both")


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
    paper=PAPER.at("Table 2, Figure 7"),
    claims=(
        *claims("IRP", (0.2, "Table 2 (0.12)"), "Table 2 (0.66)", data=_ONE),
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
    run=MeasuredBy("transship_suites.irp.stitch:measure_hub"),
    tables=(
        table_2(
            "Accuracy over all ordered pairs of encoders (Table 2)",
            [Condition(name, {"data": name}) for name in DATA],
            METHODS,
            {name: name for name in _ONE},
            "none in data; what the paper leaves open, its checkpoints among it, is named at the end "
            "of the page. Figure 7 prints no numbers",
        ),
    ),
)
