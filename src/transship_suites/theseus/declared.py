"""The paper, its printed figures, and the rows and tables that the suites of THESEUS share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transship_suites.runner import (
    Claim,
    Condition,
    Heading,
    Level,
    PaperTable,
    Quantity,
    cell,
    percent,
    read_paper,
)

PAPER, ABOUT = read_paper(Path(__file__).with_name("paper.toml"))
# part → row → accuracies on eight image sets, and their mean
PRINTED: Mapping[str, Mapping[str, Sequence[float]]] = ABOUT["printed"]
EIGHT = tuple(ABOUT["columns"])
COUNTS = (1, 2, 5, 10, 20)  # of batches (B) or of examples per class (K)
BASELINES = ("pinv", "pinv-tikhonov", "random-aligned")

# the suite of sentence encoders
TEXT_SOURCE, PUBLISHED = "minilm-l6", "minilm-l6-sre"

# the suite of small networks
SMALL_BASELINES = (*BASELINES, "pad")
# finishes without a label: what moves, and whether inputs of the old domain are kept
START = "no finish, strength without labels"
FINISHES = (("row:160", False), ("weights:20", False), ("weights:160", False), ("weights:160", True))
AUTO = "auto, no label read"
PAPER_ROLES = "{}, roles of the paper"
BOUNDS = {
    "target zero-shot": "θ_B zero-shot",
    "source fine-tuned": "θ_A fine-tune",
    "target fine-tuned": "θ_B fine-tune",
}
COLUMNS = (
    percent("accuracy", "accuracy"),
    percent("share of the source's gain", "share"),
    percent("clean accuracy", "clean"),
    Heading("strength", "strength", digits=2),
)
SETTING = (
    "the paper moves fine-tunes between CLIP models (ViT-B/16, B/16+, L/14) on eight image sets; we move "
    "them between ViTs of widths 64 and 96 pre-trained on MNIST and Fashion-MNIST, on shifts of these "
    "inputs, and show the mean of the tasks' shares where the paper's are of mean gains"
)
# ours → the paper's: Tables 3 and 8 lack the source's fine-tune, which the same models have in Tables 4 and 1
_SOURCES = {"narrower": ("wider", "θ_B fine-tune"), "same": ("deeper", "θ_A fine-tune")}


def whole_gain(part: str) -> float:
    """Return the points by which the source's fine-tune exceeds the untouched target, mean of the sets."""
    home, row = _SOURCES.get(part, (part, "θ_A fine-tune"))
    return PRINTED[home][row][-1] - PRINTED[part]["θ_B zero-shot"][-1]


def averages(part: str, rows: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Return the paper's column AVG beside rows of ours: the accuracy, and the share of the source's gain.

    Args:
        part: of the paper's tables.
        rows: ours → the paper's; what it has not printed there is left out.
    """
    zero_shot, whole, beside = PRINTED[part]["θ_B zero-shot"][-1], whole_gain(part), {}
    for row, theirs in rows.items():
        if theirs in PRINTED[part]:
            accuracy = PRINTED[part][theirs][-1]
        elif theirs == "θ_A fine-tune":
            accuracy = zero_shot + whole
        else:
            continue
        beside[row, "accuracy"] = round(accuracy, 2)
        beside[row, "share of the source's gain"] = round(100 * round(accuracy - zero_shot, 2) / whole, 1)
    return beside


def bound_rows(part: str) -> list[Condition]:
    """Return the rows that bound what a transport can do."""
    return [Condition(name, {"method": name, "part": part}) for name in BOUNDS]


def table_of_methods(
    title: str, part: str, methods: Sequence[str], theirs: Mapping[str, str], **extra: Any
) -> PaperTable:
    """Return a table of methods with ten batches; `theirs` names the paper's rows of some of them."""
    rows = bound_rows(part)
    rows += [Condition(name, {"method": name, "part": part, "batches": 10}) for name in methods]
    return PaperTable(title, tuple(rows), COLUMNS, paper=averages(part, {**BOUNDS, **theirs}), **extra)


def finish_rows(finish: str, *, kept: bool) -> tuple[str, str]:
    """Return what the rows of a finish and of its control are called."""
    start = "random update" if finish.startswith("row") else "untouched target"
    ending = f"finish {finish}{', 1,000 clean inputs kept' if kept else ''}"
    return ending, f"{start}, {ending}"


def finish_table(title: str, part: str) -> PaperTable:
    """Return the table of finishes, with their controls at equal steps and inputs."""
    names = [START, *(name for finish, kept in FINISHES for name in finish_rows(finish, kept=kept))]
    rows = [*bound_rows(part), *(Condition(name, {"method": name, "part": part}) for name in names)]
    return PaperTable(title, tuple(rows), COLUMNS)


def table_by_count(title: str, part: str, kind: str, names: Sequence[str], **extra: Any) -> PaperTable:
    """Return a table over the number of batches (B) or of examples per class (K) of methods.

    Args:
        title: above the table.
        part: of our suite; `budget` is the paper's `wider`.
        kind: of the paper's tables.
        names: of rows without their count, such as `theseus, B`.
    """
    rows, theirs = bound_rows(part), {name: BOUNDS[name] for name in list(BOUNDS)[:2]}
    for name in names:
        method, _, letter = name.partition(", ")
        factor = {"B": "batches", "K": "shots"}[letter]
        for count in COUNTS:
            where: dict[str, Level] = {"method": method, "part": part, factor: count}
            rows.append(Condition(f"{name} = {count}", where))
            theirs[f"{name} = {count}"] = f"{name} = {count}"
    return PaperTable(title, tuple(rows), COLUMNS, paper=averages(kind, theirs), setting=SETTING, **extra)


def metric_of(metric: str, method: str, part: str = "wider", **where: Any) -> Quantity:
    """Return a metric of one method between one pair of models."""
    return cell(metric, method=method, part=part, **where)


def gain_of(method: str, metric: str, **where: Any) -> Quantity:
    """Return what a method adds to a metric of the untouched target."""
    return cell(metric, method=method, **where) - cell(metric, method="untouched", **where)


def _finished(finish: str, part: str, *, kept: bool = False, metric: str = "share") -> Quantity:
    return metric_of(metric, finish_rows(finish, kept=kept)[0], part)


def _above_control(finish: str, part: str) -> Quantity:
    """What a finish has beyond the same finish of the untouched target."""
    return _finished(finish, part) - metric_of("share", finish_rows(finish, kept=False)[1], part)


def finish_claims(part: str, which: str) -> tuple[Claim, ...]:
    """What a finish on 1,000 unlabelled inputs is to reach, with the target's own head."""
    old = _finished("weights:160", part, kept=True, metric="clean")
    stated = (
        ("a strength per row recovers at least 80 %.", _finished("row:160", part), 0.80),
        ("160 steps of weights recover at least 92 %.", _finished("weights:160", part), 0.92),
        (
            "20 steps of weights end at least 15 points above the same steps of the untouched target.",
            _above_control("weights:20", part),
            0.15,
        ),
        ("160 steps end no lower than those.", _above_control("weights:160", part), 0.0),
        (
            "with clean inputs kept, 160 steps recover over 80 %.",
            _finished("weights:160", part, kept=True),
            0.80,
        ),
        (
            "and the old domain loses at most 5 points.",
            old - metric_of("clean", "target zero-shot", part),
            -0.05,
        ),
    )
    return tuple(
        Claim(
            text=f"Finished without labels, {which}: {text}", quantity=quantity, at_least=least, source="ours"
        )
        for text, quantity, least in stated
    )
