"""Tables, figures and the curve that the picture suite and the text suite of continual merging share."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transship.report import Column, Table
from transship.report.figures import heat_map, scatter
from transship_suites.otmf.claims import ours, sweep_claim, theirs
from transship_suites.otmf.names import (
    ALPHA,
    ALPHAS,
    BASE,
    BASELINES,
    CARRIED,
    CONTROLLED,
    FEW,
    FINISHED,
    HEADS,
    INDIVIDUAL,
    JOINT,
    JOINT_HEADS,
    KEPT_INPUTS,
    LABEL_HEADS,
    MIX,
    ORDERS,
    OTMF,
    OWN,
    PAPER,
    POLISHED,
    PRINTED,
    PRIORS,
    SHARED,
    SWEPT,
    SWEPT_HEADS,
    THE_PAPER,
    TOGETHER,
    TUNED,
    UNFINISHED,
    UNMERGED,
    UNSWEPT,
    WAYS,
    WIDE,
    WIDE_POLISHED,
)
from transship_suites.runner import (
    Claim,
    Condition,
    Curve,
    Heading,
    Options,
    PaperTable,
    Scale,
    Suite,
    SuiteResult,
    cell,
    percent,
)


def merging_figures(result: SuiteResult, claims: Sequence[Claim]) -> list[Any]:
    """Return the medians over orders and seeds, and what was drawn of the first order and seed."""
    return [medians(result, claims), *_matrices(result), *_clouds(result)]


def medians(result: SuiteResult, claims: Sequence[Claim]) -> Any:
    """Return a table: of every claim's quantity the median over orders and seeds, beside what is claimed."""
    rows = []
    for claim in claims:
        values = over_orders(result, claim)
        if values:
            least = None if claim.at_least is None else 100 * claim.at_least
            shown = [100 * statistics.median(values), 100 * min(values), 100 * max(values)]
            rows.append([claim.text, least, *shown, len(values)])
    columns: list[str | Column] = ["claim", Column("at least", decimals=1), Column("median", decimals=1)]
    columns += [Column("lowest", decimals=1), Column("highest", decimals=1), "values"]
    caption = (
        "Points, over orders × seeds where the quantity depends on the order, else over seeds. The verdicts "
        "above come from means over orders, seed by seed."
    )
    return Table(columns, rows, caption=caption)


def over_orders(result: SuiteResult, claim: Claim) -> list[float]:
    """Return the claim's quantity for every order and seed that has it, else for every seed."""
    orders = sorted({own.factors["order"] for own in result.measurements if "order" in own.factors}, key=str)
    split = [result.per_seed(claim.quantity.within({"order": order})) for order in orders]
    fixed = all(values == split[0] for values in split)  # it names its order, or has none
    chosen = [result.per_seed(claim.quantity)] if fixed else split
    return [value for values in chosen for value in values if value is not None]


def _drawn(result: SuiteResult) -> Iterator[tuple[str, dict[str, Any]]]:
    for done in result.cases:
        if "drawn" in done.attachments:
            drawn = done.attachments["drawn"]
            yield str(drawn.get("method") or done.case["method"]), drawn  # earlier runs have it in the case


def _matrices(result: SuiteResult) -> Iterator[Any]:
    for method, drawn in _drawn(result):
        for heads in (OWN, PAPER, CARRIED):
            yield heat_map(
                [[None if value is None else 100 * value for value in row] for row in drawn["matrix"][heads]],
                rows=[f"after {name}" for name in drawn["tasks"]],
                columns=drawn["tasks"],
                row_title="step",
                column_title="task",
                value_title="accuracy [%]",
                limits=(0.0, 100.0),
                caption=f"{method}, heads {heads}: accuracy after each arrival, first order and seed.",
            )


def _clouds(result: SuiteResult) -> Iterator[Any]:
    for method, drawn in _drawn(result):
        groups = {
            name: ([x for x, _ in points], [y for _, y in points]) for name, points in drawn["cloud"].items()
        }
        yield scatter(
            groups,
            x_title="t-SNE 1",
            y_title="t-SNE 2",
            caption=f"{method}: features of the task that came first, after the last arrival (Figures 6–10).",
        )


def cases(options: Options) -> list[dict[str, Any]]:
    """Return the bounds, every way to merge in every order, joint merges and the sweep of α.

    OTMF in its first order is one point of the sweep; where both are asked for, one case measures both.
    """
    listed: list[dict[str, Any]] = [{"part": "bounds"}]
    shared = OTMF in options["methods"] and ALPHA in options["alphas"]
    for method, orders in options["methods"].items():
        ordered = [{"part": "continual", "method": method, "order": order} for order in range(orders)]
        listed += [{"part": SHARED}, *ordered[1:]] if shared and method == OTMF else ordered
    listed += [{"part": "joint", "method": method} for method in options["joint"]]
    listed += [{"part": "finish", "kept": kept} for kept in options["finish"]]
    swept = [alpha for alpha in options["alphas"] if not (shared and alpha == ALPHA)]
    return listed + [{"part": "sweep", "method": SWEPT, "alpha": alpha} for alpha in swept]


def tables(setting: str) -> tuple[PaperTable, ...]:
    """Return all tables; the unmerged base under the same head stands in every one."""
    rows = tuple(Condition(name, {"method": name}) for name in (BASE, *WAYS))
    return (
        *_head_tables(rows),
        _bounds_table(),
        _paper_table(setting),
        _ablation_table(setting),
        PaperTable(
            title="Best head that labels train, and carried heads, first order",
            rows=tuple(Condition(name, {"method": name, "order": 0}) for name in CONTROLLED),
            columns=(
                *(percent(name, cell("accuracy of label heads", labels=name)) for name in LABEL_HEADS),
                *(
                    percent(name, cell("accuracy", heads=name))
                    for name in (CARRIED, POLISHED, WIDE, WIDE_POLISHED)
                ),
            ),
        ),
        PaperTable(
            title="Heads carried on few inputs, by what the ridge shrinks to, first order",
            rows=tuple(
                Condition(f"{name}, {count} inputs", {"method": name, "inputs": count, "order": 0})
                for name in CONTROLLED
                for count in FEW
            ),
            columns=tuple(percent(name, cell("accuracy of few", shrunk=name)) for name in PRIORS),
        ),
        PaperTable(
            title="The merged vector",
            rows=rows,
            columns=(
                Heading("norm, of the mean fine-tune's", "norm", digits=2),
                Heading("L1 shift of features", "shift", digits=1),
                Heading("Sinkhorn shift of features", "sinkhorn", digits=3),
                Heading("CPU seconds of merging", "seconds", digits=1),
            ),
        ),
        _finish_table(),
        _joint_table(setting),
        _sweep_table(setting),
    )


def _head_tables(rows: tuple[Condition, ...]) -> tuple[PaperTable, ...]:
    heads = tuple(percent(name, cell("accuracy", heads=name)) for name in HEADS)
    return (
        PaperTable(title="ACC by kind of head", rows=rows, columns=heads),
        PaperTable(
            title="ACC above the unmerged base with the same kind of head",
            rows=rows[1:],
            columns=tuple(
                percent(name, cell("accuracy", heads=name) - cell("accuracy", method=BASE, heads=name))
                for name in HEADS
            ),
        ),
        PaperTable(
            title="BWT by kind of head (own heads never change)",
            rows=rows,
            columns=tuple(percent(name, cell("backward transfer", heads=name)) for name in HEADS),
        ),
    )


def _bounds_table() -> PaperTable:
    return PaperTable(
        title="Bounds",
        rows=(
            Condition(f"{BASE}, own heads", {"method": BASE, "heads": OWN}),
            *(Condition(name, {"method": name}) for name in (INDIVIDUAL, TOGETHER)),
        ),
        columns=(percent("ACC", "accuracy"),),
        paper={
            (f"{BASE}, own heads", "ACC"): PRINTED["acc"][BASE][0],
            (INDIVIDUAL, "ACC"): PRINTED["acc"][INDIVIDUAL][0],
            (TOGETHER, "ACC"): PRINTED["means"][TOGETHER][0],
        },
        paper_source="Tables 1 and 2, ViT-B/32; its base has zero-shot heads",
        setting="other models, other tasks, heads that were trained",
    )


def _paper_table(setting: str) -> PaperTable:
    rows = [Condition(name, {"method": name, "heads": OWN}) for name in BASELINES]
    rows.append(Condition(OTMF, {"method": OTMF, "heads": PAPER}))
    acc = {name: values[0] for name, values in PRINTED["acc"].items() if name in (*BASELINES, OTMF)}
    acc |= {name: PRINTED["table_2"][name][-1] for name in BASELINES if name.startswith("AdaMerging")}
    bwt = {name: values[0] for name, values in PRINTED["bwt"].items()}
    return PaperTable(
        title="As the paper compares: own heads, but tuned ones for OTMF",
        rows=tuple(rows),
        columns=(
            percent("ACC", "accuracy"),
            percent("BWT", "backward transfer"),
            percent("BWT, heads fixed", cell("backward transfer", heads=OWN)),
            percent("base, same heads", cell("accuracy", method=BASE)),
        ),
        paper={(name, "ACC"): value for name, value in acc.items()}
        | {(name, "BWT"): value for name, value in bwt.items()},
        paper_source="Table 1, ViT-B/32, eight tasks; continual AdaMerging from Table 2",
        setting=setting,
    )


def _ablation_table(setting: str) -> PaperTable:
    parts: dict[str, dict[str, Any]] = {
        "OTMF": {"method": OTMF, "heads": PAPER},
        "without head tuning": {"method": OTMF, "heads": OWN},
        "without masks": {"method": MIX, "heads": PAPER},
        "without both": {"method": MIX, "heads": OWN},
        "nothing merged, own heads": {"method": BASE, "heads": OWN},
        "nothing merged, heads tuned": {"method": BASE, "heads": PAPER},
        "nothing merged, all heads tuned": {"method": BASE, "heads": TUNED},
    }
    return PaperTable(
        title="What masks and heads are worth",
        rows=tuple(Condition(name, where) for name, where in parts.items()),
        columns=(percent("ACC", "accuracy"), percent("BWT", "backward transfer")),
        paper={(name, "ACC"): values[0] for name, values in PRINTED["ablation"].items()},
        paper_source="Figure 5, ViT-B/32",
        setting=setting,
    )


def _finish_table() -> PaperTable:
    rows = (UNFINISHED, FINISHED, UNMERGED)
    return PaperTable(
        title="Finished on kept inputs without a label, first order",
        rows=(
            Condition(f"{BASE}, {POLISHED}", {"method": BASE, "heads": POLISHED, "order": 0}),
            *(
                Condition(f"{name}, {kept} inputs kept", {"method": name, "kept": kept})
                for kept in KEPT_INPUTS
                for name in rows
            ),
        ),
        columns=(percent("ACC", "accuracy"), Heading("CPU seconds of all steps", "seconds", digits=1)),
    )


def _joint_table(setting: str) -> PaperTable:
    rows = [Condition(BASE, {"method": BASE}), *(Condition(name, {"method": name}) for name in JOINT)]
    return PaperTable(
        title="Joint merging: all models at once",
        rows=tuple(rows),
        columns=(
            *(percent(name, cell("accuracy", heads=name)) for name in JOINT_HEADS),
            Heading("norm, of the mean fine-tune's", "norm", digits=2),
            Heading("CPU seconds of merging", "seconds", digits=1),
        ),
        paper={(name, OWN): values[-1] for name, values in PRINTED["table_2"].items() if name in JOINT},
        paper_source="Table 2, joint merging, ViT-B/32",
        setting=setting,
    )


def _sweep_table(setting: str) -> PaperTable:
    rows = (
        Condition(BASE, {"method": BASE, "order": 0}),
        *(Condition(_at(alpha), {"method": SWEPT, "alpha": alpha}) for alpha in ALPHAS),
    )
    return PaperTable(
        title="OTMF by α, first order",
        rows=rows,
        columns=(
            percent("paper's heads", cell("accuracy", heads=PAPER)),
            percent(OWN, cell("accuracy", heads=OWN)),
            percent(CARRIED, cell("accuracy", heads=CARRIED)),
        ),
        paper={(name, "paper's heads"): PRINTED["table_5"][name][-1] for name in map(_at, ALPHAS)},
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
            Condition(f"{title}, {name}", {"method": method, "heads": name})
            for title, method in (("OTMF", SWEPT), (BASE, UNSWEPT))
            for name in SWEPT_HEADS
        ),
        x_title="α, the share of the merged vector so far",
        y_title="ACC",
    )


def _at(alpha: float) -> str:
    return f"α = {alpha:g}"


def small_suite(
    setting: str, where: str, quick: Mapping[str, Any], full: Mapping[str, Any], minutes: float, **own: Any
) -> Suite:
    """Return a suite of continual merging on two cores; pictures and texts differ in what is merged.

    Args:
        setting: how it differs from the paper's.
        where: the paper's tables and figures.
        quick: which tasks, how many rows and steps the quick scale has.
        full: which the full scale has, which runs every way to merge.
        minutes: of the full scale.
        **own: what else the suite declares.
    """
    claims = (*ours(), *theirs(), sweep_claim())
    few: dict[str, Any] = {
        "methods": dict.fromkeys(("average", "OPCM", OTMF, MIX), 1),
        "joint": ["joint TIES"],
        "alphas": [],
    }
    few |= {"finish": ["all"], "finish steps": 60}
    every: dict[str, Any] = {"methods": dict(ORDERS), "joint": list(JOINT), "alphas": list(ALPHAS)}
    every |= {"finish": list(KEPT_INPUTS), "finish steps": None}
    return Suite(
        paper=THE_PAPER.at(where),
        claims=claims,
        scales={
            "quick": Scale(seeds=2, minutes=2, options={**quick, "orders": 1, **few}),
            "full": Scale(seeds=3, minutes=minutes, options={**full, "orders": 3, **every}),
        },
        cases=cases,
        tables=tables(setting),
        curves=(alpha_curve(),),
        figures=lambda result: merging_figures(result, claims),
        **own,
    )
