"""Six text tasks with label sets of their own, as states of the lower half of one encoder."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from transship_suites.materials.packages import packaged_model
from transship_suites.materials.texts import NEEDS as KNOWN
from transship_suites.materials.texts import Texts, load_texts
from transship_suites.runner import Need

TASKS = ("supersenses", "trec", "sst2", "news", "banking", "spam")
MODEL = "minilm-l6"
_FILES = {"news": "ag_news", "banking": "banking77", "spam": "sms_spam"}
NEEDS = (
    *(KNOWN[name] for name in ("supersenses", "trec", "sst2")),
    Need("data", "ag_news", "github.com/mhjabreel/CharCnn_Keras", license="research, non-commercial"),
    Need("data", "banking77", "github.com/PolyAI-LDN/task-specific-datasets", license="CC BY 4.0"),
    Need("data", "sms_spam", "github.com/EvilPort2/Spam-Detection", license="CC BY 4.0"),
    packaged_model(MODEL),
)


@cache
def load_rows(name: str, rows: int, test_rows: int) -> tuple[Texts, str]:
    """Return a task's first texts after a fixed permutation, and their hash."""
    import numpy as np

    texts = load_texts(name) if name not in _FILES else _from_file(_FILES[name])

    def some(inputs: list[str], labels: Any, most: int) -> tuple[list[str], Any]:
        order = np.random.default_rng(17).permutation(len(inputs))[:most]
        return [inputs[row] for row in order], np.asarray(labels)[order]

    train, test = some(texts.train, texts.train_labels, rows), some(texts.test, texts.test_labels, test_rows)
    chosen = Texts(*train, *test, texts.names)
    digest = hashlib.sha256("\0".join([*chosen.train, "\1", *chosen.test]).encode()).hexdigest()
    return chosen, digest


def _from_file(name: str) -> Texts:
    from transship.data import load

    data = load(name)
    train, test = data.split("train"), data.split("test")
    return Texts(list(train.inputs), train.labels, list(test.inputs), test.labels, data.label_names)
