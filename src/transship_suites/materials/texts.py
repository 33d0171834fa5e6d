"""Text tasks with their splits, in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from transship.data import find_data, load
from transship_suites.materials.origins import TEXT_TASKS


@dataclass(frozen=True, eq=False)
class Texts:
    """Training and test rows of a task: texts, or pairs of texts."""

    train: list[Any]
    train_labels: Any
    test: list[Any]
    test_labels: Any
    names: tuple[str, ...]


@cache
def load_texts(task: str, most_test: int | None = 2000) -> Texts:
    """Return a task's rows; SICK's are pairs of sentences, which the models read as two texts."""
    if task == "supersenses":  # a file per split
        train, test = (load(find_data(f"wordnet_supersense-{split}")) for split in ("train", "test"))
        names = train.label_names
    else:
        whole = load(TEXT_TASKS[task])
        train, test, names = whole.split("train"), whole.split("test"), whole.label_names
    assert test.labels is not None
    rows = list(test.inputs)[:most_test]
    return Texts(list(train.inputs), train.labels, rows, test.labels[:most_test], names)


@cache
def load_some(task: str, most: int, most_test: int) -> tuple[Texts, str]:
    """Return a task's first texts after a fixed permutation, and their hash."""
    texts = load_texts(task, 2000 if task in ("supersenses", "trec", "sst2") else None)

    def some(inputs: list[str], labels: Any, count: int) -> tuple[list[str], Any]:
        order = np.random.default_rng(17).permutation(len(inputs))[:count]
        return [inputs[row] for row in order], np.asarray(labels)[order]

    train, test = some(texts.train, texts.train_labels, most), some(texts.test, texts.test_labels, most_test)
    chosen = Texts(*train, *test, texts.names)
    digest = hashlib.sha256("\0".join([*chosen.train, "\1", *chosen.test]).encode()).hexdigest()
    return chosen, digest


def operations_phrases() -> list[str]:
    """Return short phrases as operators of services write them."""
    subjects = (
        "the api gateway",
        "a kafka consumer",
        "the primary database",
        "one kubernetes node",
        "the load balancer",
        "our redis cache",
        "the ingress controller",
        "a cron job",
        "the payment service",
        "the dns resolver",
    )
    events = (
        "is returning 502 errors",
        "ran out of memory and was killed",
        "shows high p99 latency",
        "failed its health check",
        "was rolled back after the deploy",
        "hit its connection limit",
        "is lagging behind",
        "needs a restart",
        "lost its leader election",
        "filled the disk with logs",
        "had its certificate expire",
        "is being throttled",
    )
    return [f"{subject} {event}" for subject in subjects for event in events]
