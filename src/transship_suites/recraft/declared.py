"""The paper, its printed figures, and the methods, rows and claims that the suites of RECRAFT share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transship_suites.materials.origins import CONVERTED, data, gpu, model, packaged_data
from transship_suites.runner import (
    Claim,
    Condition,
    Heading,
    Need,
    PaperTable,
    Quantity,
    Scale,
    Suite,
    cell,
    highest,
    lowest,
    product,
    read_paper,
)

PAPER, ABOUT = read_paper(Path(__file__).with_name("paper.toml"), "AISTATS 2026, Tables 1, 2, 3 and 7")
# benchmark → method → figures by task, in the order of TASKS
PRINTED: Mapping[str, Mapping[str, Sequence[float]]] = ABOUT["printed"]
# benchmark → task → what Tables 8 and 9 and the loaders say of it
TASKS: Mapping[str, dict[str, dict[str, Any]]] = {name: ABOUT[name] for name in ("pdebench", "nasbench360")}

# `nft*` is nft for as long as both stages of recraft take together
EQUAL_TIME = "nft*"
# `hybrid` is recraft on the best raw model, kept where it gains on validation rows: as `adapt fit` does, but
# with the stage 1, the tokens and the epochs of the suite
HYBRID = "hybrid"
# `default` is the shortest command, `transship adapt fit --backbone … --train … OUT`: nothing is stated
DEFAULT = "default"
CORE = ("nft", "recraft", "fa", "fa-warm", EQUAL_TIME)
OTHERS = ("scratch", "frozen", "linear", "warm", "orca", "pare", "mona", HYBRID)
RAW_NAMES = ("constant", "logistic", "ridge", "rocket")
TITLES: Mapping[str, str] = {
    "scratch": "scratch (random weights)",
    "nft": "NFT",
    EQUAL_TIME: "NFT, equal total time",
    "frozen": "frozen body",
    "linear": "head only",
    "warm": "warm-up, then NFT",
    "fa": "FA",
    "fa-warm": "FA, warm-up (no FLD)",
    "recraft": "RECRAFT",
    "orca": "ORCA",
    "pare": "PaRe",
    "mona": "MoNA (our reading)",
    HYBRID: "best raw model, corrected by RECRAFT",
    DEFAULT: "the default of `adapt fit`",
    "constant": "constant guess",
    "logistic": "logistic regression on values",
    "ridge": "ridge on values",
    "rocket": "random convolutions + ridge",
    "fno": "Fourier neural operator",
}
(WORDNET,) = packaged_data("wordnet_supersense")
STAGE_ONE = (
    Heading("W₁ at start", "w1_start", digits=2),
    Heading("W₁ at end", "w1", digits=2),
    Heading("source to source", "w1_source", digits=2),
    Heading("spread ratio", "spread", digits=2),
    Heading("FLD at start", "fld_start"),
    Heading("FLD at end", "fld"),
    Heading("fall / H(Z')", "fld_drop", percent=True, digits=1),
    Heading("held-out FLD at start", "held_out_fld_start"),
    Heading("held-out FLD at end", "held_out_fld"),
    Heading("CPU seconds", "stage1_seconds", digits=1),
)

# the paper's own setting
CONLL, CIFAR = f"eriktks/conll2003@{CONVERTED}", "uoft-cs/cifar10"
BACKBONES = {
    "roberta": "FacebookAI/roberta-base",
    "swin": "microsoft/swin-base-patch4-window7-224-in22k",
}
_WHOLE = {"rows": None, "test": None, "stage": {"fa_steps": 60}, "limits": {}}
_SECONDS = (Heading("stage 1", "stage1_seconds", digits=0), Heading("both", "seconds", digits=0))
METHODS = ("nft", "orca", "pare", "mona", "fa", "recraft", "fa-warm")
_SETTING = (
    "in data none; every task has the optimizer of Tables 8 and 9, SGD with ORCA's momentum of 0.99; what "
    "the paper leaves open is named at the end of the page"
)


def rows(*names: str, **where: Any) -> tuple[Condition, ...]:
    """Return table rows of methods; raw models and operators stand under no backbone."""
    unaided = {*RAW_NAMES, "fno"}
    return tuple(
        Condition(
            TITLES[name],
            {"method": name, **where, **({"backbone": "none"} if name in unaided else {})},
        )
        for name in names
    )


def figures(table: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], float]:
    """Return the paper's figures by (row title, column) from method → column → figure."""
    return {(TITLES[name], column): value for name, own in table.items() for column, value in own.items()}


def mean_of(metric: str, method: str, tasks: tuple[str, ...], **where: Any) -> Quantity:
    """Return a metric of a method, averaged over tasks within a seed."""
    return cell(metric, method=method, task=tasks, **where)


def worst(metric: str, method: str, tasks: tuple[str, ...], *, high: bool, **where: Any) -> Quantity:
    """Return the largest or smallest value of a metric over tasks, seed by seed.

    In a claim of `EveryRun` it stands for every run.
    """
    each = [cell(metric, method=method, task=task, **where) for task in tasks]
    return highest(*each) if high else lowest(*each)


def paper_figures(benchmark: str, columns: Mapping[str, str], *methods: str) -> dict[tuple[str, str], float]:
    """Return figures of some tasks of the paper beside rows of ours.

    Args:
        benchmark: of the paper.
        columns: our column → the paper's task.
        *methods: rows; all of the paper's where none are named.
    """
    places = {column: list(TASKS[benchmark]).index(task) for column, task in columns.items()}
    own = {name: PRINTED[benchmark][name] for name in methods or PRINTED[benchmark]}
    return figures(
        {name: {column: row[place] for column, place in places.items()} for name, row in own.items()}
    )


def common_needs(options: Mapping[str, Any]) -> list[Need]:
    """Return the backbones and proxies of the tasks that are asked for, and the card."""
    asked = {about["backbone"] for about in options["tasks"].values()}
    proxies = {
        "roberta": data(CONLL, "conll2003/SPLIT/*.parquet"),
        "swin": data(CIFAR, "plain_text/SPLIT-*.parquet"),
    }
    pairs = [(model(options["backbones"][name]), proxy) for name, proxy in proxies.items() if name in asked]
    return [gpu(11), *(need for pair in pairs for need in pair)]


def below(
    error: Callable[[str], Quantity], verb: str, where: str, sources: Mapping[str, str]
) -> tuple[Claim, ...]:
    """Return the claims that RECRAFT's error is below that of its rivals and of a control.

    Args:
        error: method → its mean error.
        verb: what RECRAFT does: "is below {}", "errs less than {}".
        where: over which tasks.
        sources: rival → where the paper says so.
    """
    names = {"nft": "NFT", "orca": "ORCA", "fa": "alignment alone"}
    stated = {f"{verb.format(names[rival])}{where}": (rival, source) for rival, source in sources.items()}
    control = verb.partition(" in ")[0].format("alignment with a plain supervised warm-up of the same length")
    stated[control] = ("fa-warm", "ours, a control that the paper lacks")
    return tuple(
        Claim(text=f"RECRAFT {text}.", quantity=error("recraft") - error(rival), at_most=0.0, source=source)
        for text, (rival, source) in stated.items()
    )


def paper_suite(
    benchmark: str,
    *,
    about: str,
    title: str,
    minutes: float,
    methods: Sequence[str] = METHODS,
    columns: tuple[Heading, ...],
    source: str,
    mean: str,
    options: Mapping[str, Any],
    needs: Callable[[Mapping[str, Any]], list[Need]],
    **own: Any,
) -> Suite:
    """Return a suite of the paper's own setting: every method on every task, with the paper's numbers.

    Args:
        benchmark: of which tasks.
        about: the suite's title.
        title: of the table of figures.
        minutes: of a whole run, a guess.
        methods: its rows.
        columns: of the table, one per task.
        source: of the paper's figures.
        mean: over what the table of seconds is.
        options: beyond those that all have.
        needs: from options.
        **own: what else the suite declares.
    """
    every = {"backbones": BACKBONES, "tasks": TASKS[benchmark], "methods": list(methods), **_WHOLE, **options}
    printed = {
        name: dict(zip((column.name for column in columns), row, strict=True))
        for name, row in PRINTED[benchmark].items()
    }
    return Suite(
        title=about,
        paper=PAPER,
        scales={"paper": Scale(seeds=5, minutes=minutes, options=every, needs=needs)},
        cases=lambda options: product(task=list(options["tasks"]), method=options["methods"]),
        tables=(
            PaperTable(title, rows(*methods), columns, figures(printed), source, _SETTING),
            PaperTable(f"Seconds of training, mean of the {mean} (Figure 8)", rows(*methods), _SECONDS),
        ),
        **own,
    )
