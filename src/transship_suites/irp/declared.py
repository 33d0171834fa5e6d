"""The paper, its printed figures, and the rows, columns and claims that both suites of IRP share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transship_suites.runner import Claim, Condition, Heading, PaperTable, Quantity, cell, printed, read_paper

PAPER, ABOUT = read_paper(Path(__file__).with_name("paper.toml"))
PRINTED: Mapping[str, Sequence[float]] = ABOUT["printed"]

# the small suite
IMAGES = ("digits", "mnist", "fashion_mnist")
METHODS = (
    "IRP (paper)",
    "IRP (guarded)",
    "IRP (completed)",
    "IRP (Tikhonov)",
    "procrustes",
    "ridge",
    "kernel",
)
# the paper's own settings of ω and δ per data set, where it has the data set
SETTINGS = {"mnist": (8, 0.65), "fashion_mnist": (8, 0.65), "trec_questions": (8, 0.70)}
DEFAULT, CROSS = (8, 0.65), (16, 0.8)
OMEGAS, DELTAS = (1, 4, 16), (0.0, 0.4, 0.6, 0.7, 0.8, 0.9)
ALPHAS = (0.1, 1.0, 5.0, 10.0, 20.0, 100.0)


def table_2(
    title: str,
    rows: Sequence[Condition],
    methods: Sequence[str],
    paper: Mapping[str, str],
    setting: str,
) -> PaperTable:
    """Return the accuracy over all ordered pairs of encoders.

    Args:
        title: above the table.
        rows: data sets.
        methods: IRP as the paper has it, then what stands beside it.
        paper: row → the paper's name of it.
        setting: how it differs from the paper's.
    """
    first = (f"zero-shot: {methods[0]}", "absolute", "non-stitch")
    return PaperTable(
        title=title,
        rows=tuple(rows),
        columns=(
            *(
                Heading(name, cell("accuracy", method=name.removeprefix("zero-shot: ")))
                for name in (*first, *methods[1:])
            ),
            Heading("pairs", cell("available", method="absolute"), digits=0),
            Heading("of these absolute can", cell("achievable", method="absolute"), digits=0),
        ),
        paper=printed({row: PRINTED[theirs] for row, theirs in paper.items()}, first),
        paper_source="Table 2",
        setting=setting,
    )


def claims(irp: str, lost: tuple[float, str], gained: str, **where: Any) -> tuple[Claim, ...]:
    """Return what is claimed of all ordered pairs: what IRP loses, gains, and a direct map has.

    Args:
        irp: the method's row.
        lost: the most that it may lose, and where the paper says so.
        gained: where the paper says that it gains.
        **where: which cases count.
    """

    def accuracy(method: str) -> Quantity:
        return cell("accuracy", **where, method=method)

    return (
        Claim(
            text=f"Stitching by IRP keeps most of the accuracy: at most {lost[0]:g} is lost on average.",
            quantity=accuracy("non-stitch") - accuracy(irp),
            at_most=lost[0],
            source=lost[1],
        ),
        Claim(
            text="IRP gains at least 0.3 over a head that is used without translation.",
            quantity=accuracy(irp) - accuracy("absolute"),
            at_least=0.3,
            source=gained,
        ),
        Claim(
            text="A direct map (ridge) stitches at least as well as IRP.",
            quantity=accuracy("ridge") - accuracy(irp),
            at_least=0.0,
            source="ours",
        ),
    )
