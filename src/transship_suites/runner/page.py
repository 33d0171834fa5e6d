"""A result as a page: the same blocks become `report.html` and `results.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from transship import report
from transship_suites.runner.declaration import Paper, Suite
from transship_suites.runner.results import CurveResult, SuiteResult, TableResult
from transship_suites.runner.verdict import Judgement, SeedSpread, Verdict

# attachments of the cases of a kept run that other runs computed, perhaps by other code
_NOTED = {"cases taken over": "taken over", "of them from other code or data": "other code"}
_TONES: dict[Verdict, Any] = {"confirmed": "good", "refuted": "bad", "undecided": "warning"}


def suite_page(suite: Suite, result: SuiteResult) -> report.Page:
    """Return the page of one suite."""
    source = f"Re-runs {result.paper}. {seeds_text(result)}"
    return report.Page(
        title=result.title,
        summary=f"{result.summary}\n\n{source} {count_verdicts(result.claims)}",
        sections=[*suite_sections(suite, result), *note_sections([suite.paper])],
        provenance=_provenance([result]),
    )


def joint_page(suites: Sequence[Suite], results: Sequence[SuiteResult]) -> report.Page:
    """Return one page of several suites: all verdicts first, then everything suite by suite."""
    claims = [claim for result in results for claim in result.claims]
    rows = [[result.suite, claim.text, claim.verdict] for result in results for claim in result.claims]
    sections = [report.Section("All claims", [report.Table(["suite", "claim", "verdict"], rows)])]
    for suite, result in zip(suites, results, strict=True):
        about = report.Text(f"{result.summary}\n\nRe-runs {result.paper}. {seeds_text(result)}")
        sections.append(report.Section(f"{result.suite}: {result.title}", [about]))
        sections += [
            report.Section(f"{result.suite}: {section.title}", section.blocks)
            for section in suite_sections(suite, result)
        ]
    sections += note_sections(suite.paper for suite in suites)
    summary = f"{len(results)} suites. {count_verdicts(claims)}"
    return report.Page("The papers' tables", summary, sections, _provenance(results))


def suite_sections(suite: Suite, result: SuiteResult) -> list[report.Section]:
    """Return verdicts, tables, curves and the suite's own figures."""
    sections = [report.Section("Claims", _claim_blocks(result.claims))]
    sections += [report.Section(table.title, [table_block(table)]) for table in result.tables]
    sections += [report.Section(curve.title, [_curve_block(curve)]) for curve in result.curves]
    figures = list(suite.figures(result)) if suite.figures is not None else []
    sections += [report.Section("Figures", figures)] if figures else []
    return sections


def note_sections(papers: Iterable[Paper]) -> list[report.Section]:
    """Return where the papers contradict themselves or cannot be right, each once."""
    by_title = {paper.title: "\n\n".join(paper.notes) for paper in papers}
    return [
        report.Section(f"What to know about “{title}”", [report.Text(notes)])
        for title, notes in by_title.items()
        if notes
    ]


def table_block(table: TableResult) -> report.Table:
    """Return the table: ours as mean ± sd, the paper's figure right of it where it has one.

    A column that nothing was measured for is left out, unless the paper has figures there or all are empty.
    """
    columns: list[report.Column] = [report.Column("")]
    filled = [place for place in range(len(table.columns)) if _is_filled(table, place)]
    shown_places = filled or list(range(len(table.columns)))
    for place in shown_places:
        name = table.columns[place]
        heading = f"{name} [%]" if table.percent[place] else name
        columns.append(report.Column(heading, decimals=table.digits[place]))
        if _has_paper(table, place):
            columns.append(report.Column(f"paper: {name}", decimals=table.digits[place]))
    rows = []
    for name, cells, paper in zip(table.rows, table.cells, table.paper, strict=True):
        row: list[Any] = [name]
        for place in shown_places:
            cell = shown(cells[place])
            row += [cell, paper[place]] if _has_paper(table, place) else [cell]
        rows.append(row)
    return report.Table(columns, rows, caption=table_note(table))


def table_note(table: TableResult) -> str:
    """Return what is said about a table: the spread, the paper's source and the difference in setting."""
    notes = [seeds_note(cell for row in table.cells for cell in row)]
    if table.paper_source:
        notes.append(f"The paper's figures: {table.paper_source.rstrip('.')}.")
    if table.setting:
        notes.append(f"Difference in setting: {table.setting}.")
    return " ".join(notes)


def seeds_note(spreads: Iterable[SeedSpread]) -> str:
    """Return `Mean ± standard deviation over 5 seeds.`, with the range where cells differ."""
    counts = sorted({spread.seeds for spread in spreads if spread.seeds})
    if not counts:
        return "No values."
    if counts == [1]:
        return "One seed, so no spread."
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean ± standard deviation over {many} seeds."


def seeds_text(result: SuiteResult) -> str:
    """Return the scale and the seeds in a sentence."""
    seeds = ", ".join(map(str, result.seeds))
    noun = "seeds" if len(result.seeds) > 1 else "seed"
    return f"Scale {result.scale}, {noun} {seeds}."


def count_verdicts(claims: Sequence[Judgement]) -> str:
    """Return `2 claims confirmed, 1 refuted, 0 undecided.`"""
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in _TONES}
    noun = "claim" if counts["confirmed"] == 1 else "claims"
    others = ", ".join(f"{counts[verdict]} {verdict}" for verdict in counts if verdict != "confirmed")
    return f"{counts['confirmed']} {noun} confirmed, {others}."


def shown(spread: SeedSpread) -> report.Spread | float | None:
    """Return what a report's cell takes: a spread, a lone mean, or nothing."""
    if spread.mean is None or spread.sd is None:
        return spread.mean
    return report.Spread(spread.mean, spread.sd)


def _has_paper(table: TableResult, place: int) -> bool:
    return any(row[place] is not None for row in table.paper)


def _is_filled(table: TableResult, place: int) -> bool:
    return _has_paper(table, place) or any(row[place].mean is not None for row in table.cells)


def _claim_blocks(claims: Sequence[Judgement]) -> list[report.Block]:
    boxes: list[report.Block] = []
    for claim in claims:
        source = f" ({claim.source})" if claim.source else ""
        body = f"**{claim.verdict}**: {claim.text}{source}\n\n{claim.reason[:1].upper()}{claim.reason[1:]}."
        boxes.append(report.Text(body, tone=_TONES[claim.verdict]))
    rules = "\n\n".join(f"**{claim.text}** {claim.rule[:1].upper()}{claim.rule[1:]}." for claim in claims)
    columns = ["claim", "mean", "interval from", "to", "per seed"]
    rows = [
        [claim.text, shown(claim.spread), claim.low, claim.high, list(claim.per_seed)] for claim in claims
    ]
    caption = (
        "The quantity that decides each claim: its mean ± standard deviation, the ends of its interval, "
    )
    caption += (
        "and its value for every seed. Claims are judged one by one; nothing corrects for their number."
    )
    decided = report.Text(rules, folded="How each claim is decided") if claims else None
    return [*boxes, report.Table(columns, rows, caption), *([decided] if decided else [])]


def _curve_block(curve: CurveResult) -> report.Figure:
    means = {
        name: [point.mean for point in points] for name, points in zip(curve.lines, curve.points, strict=True)
    }
    bands = {
        name: (
            [None if point.mean is None else point.mean - (point.sd or 0.0) for point in points],
            [None if point.mean is None else point.mean + (point.sd or 0.0) for point in points],
        )
        for name, points in zip(curve.lines, curve.points, strict=True)
    }
    drawn = report.figures.lines(
        list(curve.x),
        means,
        x_title=curve.x_title,
        y_title=curve.y_title,
        bands=bands,
        caption=f"{curve.title}. {seeds_note(point for points in curve.points for point in points)}",
        log_x=curve.log_x,
    )
    rows = [
        [level, *(shown(points[place]) for points in curve.points)] for place, level in enumerate(curve.x)
    ]
    numbers = report.Table([curve.x_title, *curve.lines], rows)
    return report.Figure(drawn.spec, drawn.caption, drawn.alt, drawn.height, drawn.width, numbers)


def _provenance(results: Sequence[SuiteResult]) -> report.Provenance:
    first = results[0]
    names = " ".join(result.suite for result in results)
    needs = {f"{need['kind']} {need['name']}": need["source"] for result in results for need in result.needs}
    return report.Provenance(
        command=f"transship bench {names} --scale {first.scale} --seed {first.seeds[0]}",
        inputs=needs,
        parameters={result.suite: dict(result.options) for result in results if result.options},
        # runs that are kept from before it was noted do not have it
        versions={**first.environment, "kernels": first.environment.get("kernels", "not noted")},
        notes={
            result.suite: {
                "cases": len(result.cases),
                **{title: count for title, name in _NOTED.items() if (count := result.count(name))},
                "seconds": round(result.seconds, 1),
                "fingerprint": result.fingerprint[:16],
            }
            for result in results
        },
    )
