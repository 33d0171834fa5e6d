"""The rows that tables of `adapt` share, the paper's figures beside them, and how a case becomes numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transship_suites.materials.packages import packaged_data
from transship_suites.materials.series import Task
from transship_suites.recraft.measure import DEFAULT, EQUAL_TIME, HYBRID, adapted, raw
from transship_suites.runner import Column, Measurement, Paper, Quantity, Row, cell, highest, lowest

PAPER = Paper(
    "Rethinking Cross-Modal Fine-Tuning: Optimizing the Interaction between Feature Alignment and Target "
    "Fitting",
    authors="Tran, Dao, Nguyen, Truong and Hoang",
    where="AISTATS 2026, Tables 1, 2, 3 and 7",
)
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
WORDNET = packaged_data("wordnet_supersense")
STAGE_ONE = (
    Column("W₁ at start", "w1_start", digits=2),
    Column("W₁ at end", "w1", digits=2),
    Column("source to source", "w1_source", digits=2),
    Column("spread ratio", "spread", digits=2),
    Column("FLD at start", "fld_start"),
    Column("FLD at end", "fld"),
    Column("fall / H(Z')", "fld_drop", percent=True, digits=1),
    Column("held-out FLD at start", "held_out_fld_start"),
    Column("held-out FLD at end", "held_out_fld"),
    Column("CPU seconds", "stage1_seconds", digits=1),
)
_BY_TITLE = {title: name for name, title in TITLES.items()}


def rows(*names: str, **where: Any) -> tuple[Row, ...]:
    """Return table rows of methods; raw models and operators stand under no backbone."""
    unaided = {*RAW_NAMES, "fno"}
    return tuple(
        Row(
            TITLES[name],
            {"method": name, **where, **({"backbone": "none"} if name in unaided else {})},
        )
        for name in names
    )


def figures(table: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], float]:
    """Return the paper's figures by (row title, column) from method → column → figure."""
    return {(TITLES[name], column): value for name, own in table.items() for column, value in own.items()}


def measured(
    task: Task,
    part: str,
    *,
    seed: int,
    backbone: Any,
    options: Mapping[str, Any],
) -> Iterator[Measurement]:
    """Yield what a part measures: one method, the raw models, or the Fourier operator.

    `options` hold `settings` of the estimator, `methods` (their own parameters by name), `longer` for `nft*`,
    and `changes`: parts that are a method with other settings.
    """
    change = options.get("changes", {}).get(part, {})
    method = str(change.get("method", part))
    if method == "raw":
        yield from raw(task, seed=seed)
    elif method == "fno":
        from transship_suites.recraft.operator import fourier_operator

        yield Measurement({"method": "fno"}, fourier_operator(task, seed=seed, **options.get("fno", {})))
    else:
        own = options.get("methods", {}).get(method)
        settings = {**options["settings"], **({"method_options": own} if own else {})}
        settings |= change.get("settings", {})
        longer = float(options.get("longer", 1.0))
        made = adapted(task, method, seed=seed, backbone=backbone, settings=settings, longer=longer)
        yield Measurement({"method": part}, made)


def mean_of(metric: str, method: str, tasks: tuple[str, ...], **where: Any) -> Quantity:
    """Return a metric of a method, averaged over tasks within a seed."""
    return cell(metric, method=method, task=tasks, **where)


def worst(metric: str, method: str, tasks: tuple[str, ...], *, high: bool, **where: Any) -> Quantity:
    """Return the largest or smallest value of a metric over tasks, seed by seed.

    In a claim of `EveryRun` it stands for every run.
    """
    each = [cell(metric, method=method, task=task, **where) for task in tasks]
    return highest(*each) if high else lowest(*each)
