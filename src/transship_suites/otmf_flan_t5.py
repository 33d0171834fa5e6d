"""OTMF in its own setting for language: FusionBench's fine-tunes of Flan-T5-base on eight tasks of GLUE.

Table 4 of the paper. It runs where the hub, the data and a GPU are.
"""

from __future__ import annotations

from typing import Any

from transship_suites.materials.glue import GLUE, HUB
from transship_suites.materials.origins import data, gpu, model
from transship_suites.otmf.names import BASE, INDIVIDUAL, MIX, OTMF, PRINTED, THE_PAPER
from transship_suites.runner import (
    Claim,
    Condition,
    Heading,
    MeasuredBy,
    Need,
    Options,
    PaperTable,
    Scale,
    Suite,
    cell,
    highest,
    percent,
    printed,
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
    bounds = [{"part": "base", "method": BASE}, {"part": "individual", "method": INDIVIDUAL}]
    joint = [{"part": "joint", "method": name} for name in options["joint"]]
    return [*bounds, *joint] + [{"part": "continual", "method": name} for name in options["methods"]]


def needs(options: Options) -> list[Need]:
    """Return the base, the fine-tunes, GLUE and the card."""
    tuned = [model(options["tuned"].format(task=task)) for task in options["tasks"]]
    return [
        gpu(16),
        model(options["base"]),
        *tuned,
        data(HUB, "TASK/SPLIT-*.parquet, as cola/train-*.parquet"),
    ]


_RIVALS = ("average", "task arithmetic", "TIES", "OPCM")
_NAMES = (*(question.title for question in GLUE.values()), "mean")


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
    paper=THE_PAPER.at("Table 4"),
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
    run=MeasuredBy("transship_suites.otmf.flan:FlanMerging"),
    tables=(
        PaperTable(
            title="Eight tasks of GLUE (Table 4)",
            rows=tuple(Condition(name, {"method": name}) for name in (BASE, INDIVIDUAL, *JOINT, *METHODS)),
            columns=(
                *(
                    percent(question.title, cell("score of the task", task=task))
                    for task, question in GLUE.items()
                ),
                percent("mean", "score"),
                Heading("seconds per model", "seconds", digits=1),
            ),
            paper={
                **printed(PRINTED["table_4"], _NAMES),
                (MIX, "mean"): PRINTED["means"][MIX][0],
            },
            paper_source="Table 4; without masks: Appendix A.2",
            setting="none in models and data; what the paper leaves open is named at the end of the page",
        ),
    ),
)
