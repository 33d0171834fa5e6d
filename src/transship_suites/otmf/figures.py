"""What the pages of continual merging show beside tables: medians, accuracy matrices, clouds of features."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from transship.report import Column, Table
from transship.report.figures import heat_map, scatter
from transship_suites.otmf.names import CARRIED, OWN, PAPER
from transship_suites.runner import Claim, SuiteResult


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
