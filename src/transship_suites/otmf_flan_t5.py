"""OTMF in its own setting for language: FusionBench's fine-tunes of Flan-T5-base on eight tasks of GLUE.

Table 4 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship_suites.materials.glue import GLUE, HUB
from transship_suites.materials.hub import data, gpu, model
from transship_suites.otmf.names import BASE, INDIVIDUAL, MIX, OTMF
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
    highest,
)

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "average": ("average", {}),
    "task arithmetic": ("task-arithmetic", {}),
    "TIES": ("ties", {}),
    "OPCM": ("opcm", {}),
    OTMF: ("otmf", {}),
    MIX: ("otmf", {"iterations": 0}),
}
JOINT: dict[str, tuple[str, dict[str, Any]]] = {
    "joint average": ("linear", {}),
    "joint task arithmetic": ("task_arithmetic", {"weight": 0.3}),
    "joint TIES": ("ties", {"density": 0.2}),
}


def cases(options: Options) -> list[dict[str, Any]]:
    """Return the bounds, joint merges and continual merges."""
    found = [{"part": "base", "method": BASE}, {"part": "individual", "method": INDIVIDUAL}]
    found += [{"part": "joint", "method": name} for name in options["joint"]]
    return found + [{"part": "continual", "method": name} for name in options["methods"]]


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one case."""
    from transship_suites.otmf.flan import Bench

    yield from Bench(case, context).measured(case)


def needs(options: Options) -> list[Need]:
    """Return the base, the fine-tunes, GLUE and the card."""
    tuned = [model(options["tuned"].format(task=task)) for task in options["tasks"]]
    return [
        gpu(16),
        model(options["base"]),
        *tuned,
        data(HUB, "TASK/SPLIT-*.parquet, as cola/train-*.parquet"),
    ]


_TABLE_4 = {
    INDIVIDUAL: (69.1, 82.7, 85.5, 90.9, 84.0, 84.4, 92.9, 87.4, 84.6),
    "joint average": (69.7, 59.7, 78.9, 90.1, 83.8, 80.5, 91.2, 72.0, 78.2),
    "joint task arithmetic": (68.8, 55.2, 78.7, 89.8, 83.7, 79.1, 91.5, 72.4, 77.4),
    "joint TIES": (68.3, 56.3, 79.4, 89.8, 83.7, 79.4, 91.6, 71.2, 77.5),
    "TIES": (69.1, 56.5, 76.2, 88.4, 82.1, 80.1, 91.2, 62.2, 75.7),
    "task arithmetic": (70.5, 57.8, 78.4, 90.2, 83.6, 80.5, 92.3, 77.8, 78.9),
    OTMF: (69.8, 77.3, 78.7, 87.3, 82.6, 78.7, 92.0, 73.4, 80.0),
    MIX: (None, None, None, None, None, None, None, None, 78.3),
}
_RIVALS = ("average", "task arithmetic", "TIES", "OPCM")
_NAMES = (*(one.title for one in GLUE.values()), "mean")


def _score(method: str) -> Any:
    return cell("score", method=method)


suite = Suite(
    title="OTMF and its rivals on Flan-T5-base and GLUE, the paper's own setting",
    summary=(
        "FusionBench's published fine-tunes of Flan-T5-base on eight tasks of GLUE are merged one after "
        "another, in an order that the seed draws, or together. All weights are merged, the vocabulary head "
        "too; features are the mean of the encoder's last states. Answers are generated greedily and count "
        "when they are exact; STS-B is Spearman's ρ. Test rows are GLUE's validation split, whose labels are "
        "public. The paper's rows of AdaMerging and Concrete need a head per task, which these models have "
        "not: they are not here."
    ),
    paper=Paper(
        "Merging without Forgetting: Continual Fusion of Task-Specific Models via Optimal Transport",
        authors="Pan, Chen, Li, Zhang, Cui, Jin, Tao, Yang, Ye and Zhang",
        where="Table 4",
    ),
    claims=(
        Claim(
            text="OTMF is above averaging, task arithmetic, TIES and OPCM, all continual, mean of the tasks.",
            quantity=_score(OTMF) - highest(*(_score(name) for name in _RIVALS)),
            at_least=0.0,
            source="Table 4 (+1.1; +0.4 over layer-wise AdaMerging, which is not here)",
        ),
        Claim(
            text="On MNLI OTMF is at least 5 points above the best of these and of the joint merges.",
            quantity=cell("score of the task", method=OTMF, task="mnli")
            - highest(*(cell("score of the task", method=name, task="mnli") for name in (*_RIVALS, *JOINT))),
            at_least=0.05,
            source="Table 4 (+17.6; +12.8 over layer-wise AdaMerging, which is not here)",
        ),
        Claim(
            text="Masks are worth at least 1 point over the same mix without masks.",
            quantity=_score(OTMF) - _score(MIX),
            at_least=0.01,
            source="Appendix A.2 (1.2)",
        ),
    ),
    scales={
        "paper": Scale(
            seeds=3,
            minutes=1200,
            options={
                "base": "google/flan-t5-base",
                "tuned": "tanganke/flan-t5-base_glue-{task}",
                "tasks": list(GLUE),
                "methods": METHODS,
                "joint": JOINT,
                "inputs": 1600,
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
            title="Eight tasks of GLUE (Table 4)",
            rows=tuple(Row(name, {"method": name}) for name in (BASE, INDIVIDUAL, *JOINT, *METHODS)),
            columns=(
                *(
                    Column(one.title, cell("score of the task", task=task), percent=True, digits=1)
                    for task, one in GLUE.items()
                ),
                Column("mean", "score", percent=True, digits=1),
                Column("seconds per model", "seconds", digits=1),
            ),
            paper={
                (row, name): value
                for row, own in _TABLE_4.items()
                for name, value in zip(_NAMES, own, strict=True)
                if value is not None
            },
            paper_source="Table 4; without masks: Appendix A.2",
            setting="none in models and data; what the paper leaves open is named at the end of the page",
        ),
    ),
)
