"""What the small suites of continual merging claim: the paper's sentences, and ours."""

from __future__ import annotations

from collections.abc import Sequence

from transship_suites.otmf.names import (
    ALPHA,
    ALPHAS,
    BASE,
    BASELINES,
    CARRIED,
    FINISHED,
    KEPT,
    LABEL_HEADS,
    MIX,
    ONCE,
    OTMF,
    OWN,
    PAIRED,
    PAPER,
    POLISHED,
    SWEPT,
    UNFINISHED,
    UNMERGED,
)
from transship_suites.runner import Claim, Quantity, cell, highest

Stated = tuple[str, Quantity, float]  # a claim's text, its quantity and the least it must be


def accuracy(method: str, heads: str) -> Quantity:
    """ACC of a way to merge under one kind of head."""
    return cell("accuracy", method=method, heads=heads)


def transfer(method: str, heads: str) -> Quantity:
    """BWT of a way to merge under one kind of head."""
    return cell("backward transfer", method=method, heads=heads)


def best_label_head(method: str) -> Quantity:
    """The best of seven heads that a quarter of the labels trains on a merged body, in the first order."""
    return highest(
        *(cell("accuracy of label heads", method=method, labels=name, order=0) for name in LABEL_HEADS)
    )


def ours() -> tuple[Claim, ...]:
    """What we hold: heads carried without labels, on whichever body.

    Those of polished heads and of the average at full norm were written down after first results of the plain
    ones (one seed, pictures) were seen, and say so.
    """
    best = highest(*(accuracy(name, POLISHED) for name in ("OPCM", "task arithmetic", OTMF, "average")))
    first: list[Stated] = [
        *_held(CARRIED),
        (
            "Plain averaging with heads carried once is not below OTMF with the paper's heads.",
            accuracy("average", ONCE) - accuracy(OTMF, PAPER),
            0.0,
        ),
    ]
    later: list[Stated] = [
        *_held(POLISHED),
        (
            "The average at the norm of the fine-tunes is at most 0.5 points below the best other body, "
            "heads carried + polish.",
            accuracy(KEPT, POLISHED) - best,
            -0.005,
        ),
    ]
    finished = cell("accuracy", method=FINISHED, kept="all")
    first += [
        (
            "A finish of the average without labels is at least 1.5 points above that of the base.",
            finished - cell("accuracy", method=UNMERGED, kept="all"),
            0.015,
        ),
        (
            "It is at least 1 point above the average that is not finished.",
            finished - cell("accuracy", method=UNFINISHED, kept="all"),
            0.01,
        ),
    ]
    return tuple(
        Claim(text=text, quantity=quantity, at_least=least, source=source)
        for source, stated in (("ours", first), ("ours, added after first results", later))
        for text, quantity, least in stated
    )


def _held(heads: str) -> list[Stated]:
    """The claims of one kind of carried head."""
    opcm = accuracy("OPCM", heads)
    above: list[Stated] = [
        (
            f"{name}, {heads}: without labels at least 1 point above the best head that a quarter of the "
            "labels trains.",
            cell("accuracy", method=name, heads=heads, order=0) - best_label_head(name),
            0.01,
        )
        for name in ("average", "OPCM")
    ]
    return [
        *above,
        (
            f"Average, {heads}: at least 4 points above the tasks' own heads.",
            accuracy("average", heads) - accuracy("average", OWN),
            0.04,
        ),
        (
            f"OPCM, {heads}: at least 8 points above the tasks' own heads.",
            opcm - accuracy("OPCM", OWN),
            0.08,
        ),
        (
            f"OPCM, {heads}: at least 3 points above the unmerged base with the same kind of head.",
            opcm - accuracy(BASE, heads),
            0.03,
        ),
        (
            f"OPCM, {heads}: at least 4 points above OTMF with the paper's heads.",
            opcm - accuracy(OTMF, PAPER),
            0.04,
        ),
    ]


def theirs(baselines: Sequence[str] = BASELINES) -> tuple[Claim, ...]:
    """What the paper says, where it can be asked here."""
    masks = accuracy(OTMF, PAPER) - accuracy(MIX, PAPER)
    heads = accuracy(OTMF, PAPER) - accuracy(OTMF, OWN)
    stated: list[tuple[str, Quantity, float, str]] = [
        (
            "OTMF with its tuned heads is above every continual baseline with own heads.",
            accuracy(OTMF, PAPER) - highest(*(accuracy(name, OWN) for name in baselines)),
            0.0,
            "Table 1 (+4.2)",
        ),
        (
            "OTMF is above every continual baseline when all have own heads.",
            accuracy(OTMF, OWN) - highest(*(accuracy(name, OWN) for name in baselines)),
            0.0,
            "Section 5.2, on equal terms",
        ),
        (
            "Masks are worth at least 1 point over the same mix without masks, heads tuned in both.",
            masks,
            0.01,
            "Figure 5 (15.7)",
        ),
        (
            "Masks are the primary driver: they are worth more than head tuning.",
            masks - heads,
            0.0,
            "Appendix A.2 (15.7 against 7.5)",
        ),
        ("BWT of OTMF with its tuned heads is not negative.", transfer(OTMF, PAPER), 0.0, "Table 1 (+3.3)"),
        (
            "BWT of OTMF with heads that never change is not negative.",
            transfer(OTMF, OWN),
            0.0,
            "Table 1, on equal terms",
        ),
        (
            "Sinkhorn alignment is at least 1 point above the plain distance of paired features.",
            accuracy(OTMF, PAPER) - accuracy(PAIRED, PAPER),
            0.01,
            "Section 3.2",
        ),
    ]
    return tuple(
        Claim(text=text, quantity=quantity, at_least=least, source=source)
        for text, quantity, least, source in stated
    )


def sweep_claim() -> Claim:
    """α = 0.8 is the best of the sweep."""
    others = highest(*(_swept(alpha) for alpha in ALPHAS if alpha != ALPHA))
    return Claim(
        text="α = 0.8 is the best of the sweep.",
        quantity=_swept(ALPHA) - others,
        at_least=0.0,
        source="Table 5 (+3.3)",
    )


def _swept(alpha: float) -> Quantity:
    return cell("accuracy", method=SWEPT, heads=PAPER, alpha=alpha)
