"""THESEUS between real sentence encoders: MiniLM-L6 fine-tuned on a task, moved to encoders that share little
with it.

Tables 2 and 9 of the paper, on encoders of 17 to 110 million parameters; and a fine-tune that somebody
published.
"""

from __future__ import annotations

from typing import Any

from transship_suites.materials.origins import packaged_models, text_data
from transship_suites.runner import (
    Claim,
    Condition,
    Heading,
    MeasuredBy,
    Options,
    PaperTable,
    Quantity,
    Scale,
    Suite,
    percent,
    product,
)
from transship_suites.theseus.declared import ABOUT, PAPER, PUBLISHED, TEXT_SOURCE, gain_of

# tasks and targets of the claims, and those that are shown with one seed
MAIN = {"trec": ["granite-small", "minilm-l3"]}
OTHERS = ["bge-small", "distilbert-768", "mpnet-base"]
TASKS = ("supersenses", "sst2", "sick")
ONCE = {**{task: ["minilm-l3", "granite-small"] for task in TASKS}, "trec": OTHERS}
FULL = ["theseus", "gradient", "gradient blend", "random-aligned"]
SMALL = ["theseus", "gradient", "random-aligned", "identity"]
ONE_WIDTH = ("minilm-l3", "granite-small", "bge-small")  # the source's own, so that updates can be copied
PROBES = (20, 50, 100)


def cases(options: Options) -> list[dict[str, Any]]:
    """Return a task per target, and the published fine-tune per target."""
    listed = [*options["main"].items(), *options["once"].items(), ("published", options["published"])]
    return [case for task, targets in listed for case in product(task=[task], target=targets)]


def _gain(method: str, metric: str, target: str) -> Quantity:
    return gain_of(method, metric, task="trec", target=target)


_SETTING = (
    "the paper moves fine-tunes from T5-3B to T5-Large (one width and tokenizer) on entailment tasks; we "
    "move MiniLM-L6's to encoders that share little with it. Reused heads: the paper puts the source's head "
    "on the moved features as they are, and a random head on the untouched target; we turn the features of "
    "both into the source's space by a rotation fitted on 1,000 inputs. Batches are of 32 inputs"
)


def _figures(column: str) -> dict[tuple[str, str], float]:
    """Return a column of Tables 2 and 9 as rows and columns of ours."""
    own = ABOUT["text"][column]
    probes = {
        (name, f"probe, {batches} batches"): own[name][place]
        for name in ("source", "untouched", "theseus")
        for place, batches in enumerate(PROBES)
    }
    reused = {(name, "reused head"): value for name, value in own["reused"].items()}
    return {("source fine-tuned", "accuracy"): own["tuned"], **probes, **reused}


def _paper(task: str, target: str) -> dict[str, Any]:
    """Return the paper's figures beside a table; bge-small, a relative of the source, gets none."""
    if task == "sick":
        column, what = "snli", "SNLI, three classes of entailment as in SICK"
    elif task == "trec" and target != "bge-small":
        column, what = "mean", "AVG; none of its five tasks is like TREC"
    else:
        return {}
    return {
        "paper": _figures(column),
        "paper_source": f"Table 2, and Table 9 with B = 20 for reused heads; column {what}",
        "setting": _SETTING if target in MAIN.get(task, ()) else f"{_SETTING}; our maps here come from ten",
    }


def _table(task: str, target: str) -> PaperTable:
    shown = FULL if target in MAIN.get(task, ()) else SMALL
    methods = [name for name in shown if name != "identity" or target in ONE_WIDTH]
    names = ("source fine-tuned", "source", "untouched", *methods, "frozen source carried")
    columns = (
        percent("accuracy", "accuracy"),
        *(percent(f"probe, {batches} batches", f"probe {batches}") for batches in PROBES),
        percent("carry, 1000 inputs", "carry"),
        percent("reused head", "reused head"),
        Heading("strength", "strength", digits=1),
    )
    rows = tuple(Condition(name, {"method": name, "task": task, "target": target}) for name in names)
    return PaperTable(title=f"{task} to {target}", rows=rows, columns=columns, **_paper(task, target))


suite = Suite(
    title="THESEUS between real sentence encoders",
    summary=(
        "MiniLM-L6 is fine-tuned on a task and the update is moved to encoders of other depth, width, "
        "vocabulary and pre-training. Measured on frozen features: a logistic probe with few labels, a head "
        "carried from the fine-tuned source on 1,000 unlabelled inputs, and the source's head itself through "
        "a rotation of features. bge-small is a relative of MiniLM-L6 (near copies of its blocks) and no "
        "cross-model result."
    ),
    paper=PAPER.at("Tables 2 and 9"),
    claims=(
        Claim(
            text="To granite-small (other tokenizer), THESEUS adds 7 points or more to a 640-label probe.",
            quantity=_gain("theseus", "probe 20", "granite-small"),
            at_least=0.07,
            source="Table 2 (+22 at 20 batches)",
        ),
        Claim(
            text="To granite-small, THESEUS adds at least 6 points to a carried head.",
            quantity=_gain("theseus", "carry", "granite-small"),
            at_least=0.06,
            source="ours",
        ),
        Claim(
            text="To minilm-l3 (half the depth), gradient maps add at least 6 points to the probe.",
            quantity=_gain("gradient", "probe 20", "minilm-l3"),
            at_least=0.06,
            source="ours",
        ),
        Claim(
            text="To minilm-l3, THESEUS adds at least 4 points to the probe.",
            quantity=_gain("theseus", "probe 20", "minilm-l3"),
            at_least=0.04,
            source="ours",
        ),
        *(
            Claim(
                text=f"A random update through the maps to {target} adds at most 3 points to the probe.",
                quantity=_gain("random-aligned", "probe 20", target),
                at_most=0.03,
                source="ours",
            )
            for target in ("granite-small", "minilm-l3")
        ),
    ),
    scales={
        "quick": Scale(
            seeds=2,
            minutes=8,
            options={
                "main": {"trec": ["minilm-l3"]},
                "once": {},
                "published": [],
                "seeds": 2,
                "epochs": 2,
                "full": {
                    "test": 500,
                    "batches": 20,
                    "probe": [20],
                    "methods": ["theseus", "gradient", "random-aligned"],
                },
            },
        ),
        "full": Scale(
            seeds=3,
            minutes=85,
            options={
                "main": MAIN,
                "once": ONCE,
                "published": ["bge-small", "minilm-l3"],
                "seeds": 3,
                "epochs": 2,
                "full": {"test": 500, "batches": 20, "probe": [*PROBES], "methods": FULL},
                "small": {"test": 500, "batches": 10, "probe": [*PROBES], "methods": SMALL},
            },
            needs=(
                *text_data("sst2", "sick", "supersenses"),
                *packaged_models(PUBLISHED, "bge-small", "mpnet-base", "distilbert-768"),
            ),
        ),
    },
    cases=cases,
    run=MeasuredBy("transship_suites.theseus.text:measured"),
    tables=(
        *(
            _table(task, target)
            for listed in (MAIN, ONCE)
            for task, targets in listed.items()
            for target in targets
        ),
        PaperTable(
            title="A published fine-tune: rank correlation of similarities with it",
            rows=tuple(
                Condition(f"{name}, {target}", {"method": name, "task": "published", "target": target})
                for target in ("bge-small", "minilm-l3")
                for name in ("source", "untouched", "theseus", "gradient", "random-aligned", "identity")
            ),
            columns=(
                Heading("rank correlation", "rank correlation"),
                Heading("strength", "strength", digits=1),
            ),
        ),
    ),
    needs=(*text_data("trec"), *packaged_models(TEXT_SOURCE, "minilm-l3", "granite-small")),
)
