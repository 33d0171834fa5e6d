"""Tables, claims and the curve that the picture suite and the text suite of continual merging share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transship_suites.otmf.names import (
    ALPHA,
    ALPHAS,
    BASE,
    BASELINES,
    CARRIED,
    CONTROLLED,
    FEW,
    HEADS,
    INDIVIDUAL,
    JOINT,
    JOINT_HEADS,
    KEPT,
    LABEL_HEADS,
    MIX,
    ONCE,
    OTMF,
    OWN,
    PAIRED,
    PAPER,
    POLISHED,
    PRIORS,
    SHARED,
    SWEPT,
    SWEPT_HEADS,
    TOGETHER,
    TUNED,
    UNSWEPT,
    WAYS,
    WIDE,
    WIDE_POLISHED,
)
from transship_suites.runner import Claim, Column, Curve, Options, Quantity, Row, Table, cell, highest

Stated = tuple[str, Quantity, float]  # a claim's text, its quantity and the least it must be

# Table 1 of the paper, ViT-B/32, eight tasks: ACC and BWT
_TABLE_1 = {
    "average": (66.3, -11.5),
    "task arithmetic": (67.5, -9.6),
    "TIES": (49.0, -15.3),
    "TSV-M": (73.9, -16.1),
    "OPCM": (75.5, -6.3),
    OTMF: (79.7, 3.3),
}
# Table 2: continual AdaMerging
_TABLE_2 = {"AdaMerging, task": 66.3, "AdaMerging, layer": 56.0}
# Table 2: joint merging
_TABLE_2_JOINT = {
    "joint average": 66.0,
    "joint Fisher": 68.3,
    "joint RegMean": 71.8,
    "joint task arithmetic": 69.0,
    "joint TIES": 72.8,
    "joint Concrete": 77.3,
    "joint AdaMerging, task": 70.7,
}
# Table 5: ACC by α
_TABLE_5 = {0.0: 55.4, 0.2: 55.4, 0.4: 63.9, 0.6: 72.0, 0.7: 76.4, 0.8: 79.7, 0.9: 71.0, 1.0: 65.8}


def cases(options: Options) -> list[dict[str, Any]]:
    """Return the bounds, every way to merge in every order, joint merges and the sweep of α.

    OTMF in its first order is one point of the sweep; where both are asked for, one case measures both.
    """
    found: list[dict[str, Any]] = [{"part": "bounds"}]
    shared = OTMF in options["methods"] and ALPHA in options["alphas"]
    for method, orders in options["methods"].items():
        ordered = [{"part": "continual", "method": method, "order": order} for order in range(orders)]
        found += [{"part": SHARED}, *ordered[1:]] if shared and method == OTMF else ordered
    found += [{"part": "joint", "method": method} for method in options["joint"]]
    swept = [alpha for alpha in options["alphas"] if not (shared and alpha == ALPHA)]
    return found + [{"part": "sweep", "method": SWEPT, "alpha": alpha} for alpha in swept]


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
    return tuple(
        Claim(text=text, quantity=quantity, at_least=least, source=source)
        for source, stated in (("ours", first), ("ours, added after first results", later))
        for text, quantity, least in stated
    )


def _held(heads: str) -> list[Stated]:
    """The claims of one kind of carried head."""
    opcm = accuracy("OPCM", heads)
    found: list[Stated] = [
        (
            f"{name}, {heads}: without labels at least 1 point above the best head that a quarter of the "
            "labels trains.",
            cell("accuracy", method=name, heads=heads, order=0) - best_label_head(name),
            0.01,
        )
        for name in ("average", "OPCM")
    ]
    return [
        *found,
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


def _percent(name: str, quantity: str | Quantity) -> Column:
    return Column(name, quantity, percent=True, digits=1)


def tables(*, setting: str) -> tuple[Table, ...]:
    """Return all tables; the unmerged base under the same head stands in every one."""
    rows = tuple(Row(name, {"method": name}) for name in (BASE, *WAYS))
    heads = tuple(_percent(name, cell("accuracy", heads=name)) for name in HEADS)
    return (
        Table(title="ACC by kind of head", rows=rows, columns=heads),
        Table(
            title="ACC above the unmerged base with the same kind of head",
            rows=rows[1:],
            columns=tuple(
                _percent(name, cell("accuracy", heads=name) - cell("accuracy", method=BASE, heads=name))
                for name in HEADS
            ),
        ),
        Table(
            title="BWT by kind of head (own heads never change)",
            rows=rows,
            columns=tuple(_percent(name, cell("backward transfer", heads=name)) for name in HEADS),
        ),
        _bounds_table(),
        _paper_table(setting),
        _ablation_table(setting),
        Table(
            title="Best head that labels train, and carried heads, first order",
            rows=tuple(Row(name, {"method": name, "order": 0}) for name in CONTROLLED),
            columns=(
                *(_percent(name, cell("accuracy of label heads", labels=name)) for name in LABEL_HEADS),
                *(
                    _percent(name, cell("accuracy", heads=name))
                    for name in (CARRIED, POLISHED, WIDE, WIDE_POLISHED)
                ),
            ),
        ),
        Table(
            title="Heads carried on few inputs, by what the ridge shrinks to, first order",
            rows=tuple(
                Row(f"{name}, {count} inputs", {"method": name, "inputs": count, "order": 0})
                for name in CONTROLLED
                for count in FEW
            ),
            columns=tuple(_percent(name, cell("accuracy of few", shrunk=name)) for name in PRIORS),
        ),
        Table(
            title="The merged vector",
            rows=rows,
            columns=(
                Column("norm, of the mean fine-tune's", "norm", digits=2),
                Column("L1 shift of features", "shift", digits=1),
                Column("Sinkhorn shift of features", "sinkhorn", digits=3),
                Column("CPU seconds of merging", "seconds", digits=1),
            ),
        ),
        _joint_table(setting),
        _sweep_table(setting),
    )


def _bounds_table() -> Table:
    return Table(
        title="Bounds",
        rows=(
            Row(f"{BASE}, own heads", {"method": BASE, "heads": OWN}),
            *(Row(name, {"method": name}) for name in (INDIVIDUAL, TOGETHER)),
        ),
        columns=(_percent("ACC", "accuracy"),),
        paper={(f"{BASE}, own heads", "ACC"): 48.1, (INDIVIDUAL, "ACC"): 90.4, (TOGETHER, "ACC"): 88.9},
        paper_source="Tables 1 and 2, ViT-B/32; its base has zero-shot heads",
        setting="other models, other tasks, heads that were trained",
    )


def _paper_table(setting: str) -> Table:
    rows = [Row(name, {"method": name, "heads": OWN}) for name in BASELINES]
    rows.append(Row(OTMF, {"method": OTMF, "heads": PAPER}))
    paper: dict[tuple[str, str], float] = {}
    for name, (found, back) in _TABLE_1.items():
        paper |= {(name, "ACC"): found, (name, "BWT"): back}
    paper |= {(name, "ACC"): found for name, found in _TABLE_2.items()}
    return Table(
        title="As the paper compares: own heads, but tuned ones for OTMF",
        rows=tuple(rows),
        columns=(
            _percent("ACC", "accuracy"),
            _percent("BWT", "backward transfer"),
            _percent("BWT, heads fixed", cell("backward transfer", heads=OWN)),
            _percent("base, same heads", cell("accuracy", method=BASE)),
        ),
        paper=paper,
        paper_source="Table 1, ViT-B/32, eight tasks; continual AdaMerging from Table 2",
        setting=setting,
    )


def _ablation_table(setting: str) -> Table:
    parts: dict[str, tuple[dict[str, Any], float | None]] = {
        "OTMF": ({"method": OTMF, "heads": PAPER}, 79.7),
        "without head tuning": ({"method": OTMF, "heads": OWN}, 72.2),
        "without masks": ({"method": MIX, "heads": PAPER}, 64.0),
        "without both": ({"method": MIX, "heads": OWN}, None),
        "nothing merged, own heads": ({"method": BASE, "heads": OWN}, None),
        "nothing merged, heads tuned": ({"method": BASE, "heads": PAPER}, None),
        "nothing merged, all heads tuned": ({"method": BASE, "heads": TUNED}, None),
    }
    return Table(
        title="What masks and heads are worth",
        rows=tuple(Row(name, where) for name, (where, _) in parts.items()),
        columns=(_percent("ACC", "accuracy"), _percent("BWT", "backward transfer")),
        paper={(name, "ACC"): found for name, (_, found) in parts.items() if found is not None},
        paper_source="Figure 5, ViT-B/32",
        setting=setting,
    )


def _joint_table(setting: str) -> Table:
    rows = [Row(BASE, {"method": BASE}), *(Row(name, {"method": name}) for name in JOINT)]
    return Table(
        title="Joint merging: all models at once",
        rows=tuple(rows),
        columns=(
            *(_percent(name, cell("accuracy", heads=name)) for name in JOINT_HEADS),
            Column("norm, of the mean fine-tune's", "norm", digits=2),
            Column("CPU seconds of merging", "seconds", digits=1),
        ),
        paper={(name, OWN): found for name, found in _TABLE_2_JOINT.items()},
        paper_source="Table 2, joint merging, ViT-B/32",
        setting=setting,
    )


def _sweep_table(setting: str) -> Table:
    rows = (
        Row(BASE, {"method": BASE, "order": 0}),
        *(Row(f"α = {alpha:g}", {"method": SWEPT, "alpha": alpha}) for alpha in ALPHAS),
    )
    return Table(
        title="OTMF by α, first order",
        rows=rows,
        columns=(
            _percent("paper's heads", cell("accuracy", heads=PAPER)),
            _percent(OWN, cell("accuracy", heads=OWN)),
            _percent(CARRIED, cell("accuracy", heads=CARRIED)),
        ),
        paper={(f"α = {alpha:g}", "paper's heads"): found for alpha, found in _TABLE_5.items()},
        paper_source="Table 5",
        setting=setting,
    )


def alpha_curve() -> Curve:
    """ACC of OTMF against α, by kind of head, beside that of the unmerged base."""
    return Curve(
        title="ACC of OTMF by α, first order",
        x="alpha",
        quantity="accuracy",
        lines=tuple(
            Row(f"{title}, {name}", {"method": method, "heads": name})
            for title, method in (("OTMF", SWEPT), (BASE, UNSWEPT))
            for name in SWEPT_HEADS
        ),
        x_title="α, the share of the merged vector so far",
        y_title="ACC",
    )
