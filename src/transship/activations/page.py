"""The page of a comparison: which layers of two models agree."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from transship.activations.comparison import Comparison, Residual, StackComparison
from transship.report import (
    Block,
    Column,
    Facts,
    KeyFigure,
    KeyFigures,
    Page,
    Provenance,
    Section,
    Table,
    Text,
    figures,
    short_name,
)


def comparison_page(comparison: Comparison, provenance: Provenance | None = None) -> Page:
    """Return the page that `transship compare --report` writes."""
    facts = Facts(comparison.to_dict(), shown=False)
    comparison = _without_folders(comparison)
    sections = [Section("In short", [_key_figures(comparison)])]
    sections += [_stack_section(comparison, stack) for stack in comparison.stacks]
    sections.append(_residual_section(comparison))
    sections.append(Section("", [facts]))
    if comparison.unmatched:
        rows = [[model, site, reason] for model, site, reason in comparison.unmatched]
        table = Table(["model", Column("site", code=True), "reason"], rows)
        sections.append(Section("Without a partner", [table], detail=True))
    return Page(
        f"{comparison.source} and {comparison.target}", comparison_summary(comparison), sections, provenance
    )


def _without_folders(comparison: Comparison) -> Comparison:
    """Return it with the models' own names, unless both are called the same."""
    source, target = short_name(comparison.source), short_name(comparison.target)
    return comparison if source == target else replace(comparison, source=source, target=target)


def comparison_summary(comparison: Comparison) -> str:
    """Return what was found in two sentences."""
    last = [stack.cka[-1][-1] for stack in comparison.stacks]
    text = f"Over the same {comparison.inputs:,} inputs ({comparison.rows:,} tokens), "
    if last:
        text += f"the last layers agree with a CKA of {last[0]:.2f} (1 is a rotated copy, 0 unrelated). "
    residuals = [layer.residual for layer in comparison.layers]
    if residuals:
        text += (
            f"The best rotation leaves {statistics.median(residuals):.0%} of a layer's variance unexplained."
        )
    return text.strip()


def best_partners(stack: StackComparison) -> list[tuple[str, str, float]]:
    """Return (target layer, most similar source layer, CKA) for every target layer."""
    return [
        (name, stack.source_layers[best], stack.cka[best][column])
        for column, (name, best) in enumerate(zip(stack.target_layers, stack.best_source, strict=True))
    ]


def _key_figures(comparison: Comparison) -> KeyFigures:
    key_figures = [KeyFigure("inputs", comparison.inputs, f"{comparison.rows:,} tokens counted")]
    for stack in comparison.stacks:
        label = f"CKA of the last layers{_of(stack)}"
        key_figures.append(KeyFigure(label, round(stack.cka[-1][-1], 3), "1 is a rotated copy, 0 unrelated"))
    if comparison.layers:
        median = statistics.median(layer.residual for layer in comparison.layers)
        key_figures.append(
            KeyFigure("residual of a layer", f"{median:.0%}", "median after the best rotation and scale")
        )
    key_figures.append(KeyFigure("matched sites", len({site.name for site in comparison.sites})))
    return KeyFigures(key_figures)


def _stack_section(comparison: Comparison, stack: StackComparison) -> Section:
    heat_map = figures.heat_map(
        stack.cka,
        rows=stack.source_layers,
        columns=stack.target_layers,
        row_title=f"layer of {comparison.source}",
        column_title=f"layer of {comparison.target}",
        value_title="CKA",
        limits=(0.0, 1.0),
        caption="Linear CKA of the hidden states, minibatch-unbiased: how alike layers are up to a rotation.",
    )
    partners = Table(
        [
            f"layer of {comparison.target}",
            f"most similar layer of {comparison.source}",
            Column("CKA", decimals=3),
        ],
        [list(row) for row in best_partners(stack)],
        caption="The best partner of every layer.",
    )
    return Section(f"Layer by layer{_of(stack)}", [heat_map, partners])


def _residual_section(comparison: Comparison) -> Section:
    text = Text(
        "How much of a space's variance the best rotation and scale of its partner leaves unexplained, "
        "about the means: 0 % for a rotated twin, 100 % for unrelated spaces."
    )
    blocks: list[Block] = [text]
    by_role = _by_role([*comparison.layers, *comparison.sites])
    if by_role:
        numbered = sorted({block for series in by_role.values() for block in series})
        series = {name: [values.get(block) for block in numbered] for name, values in by_role.items()}
        blocks.append(
            figures.lines(
                numbered,
                series,
                x_title=f"block of {comparison.target}",
                y_title="residual",
                caption="What each role's output leaves unexplained, block by block.",
            )
        )
    rows = [
        [
            residual.name,
            residual.side,
            f"{residual.widths[0]} → {residual.widths[1]}",
            residual.residual,
            residual.agreement,
        ]
        for residual in [*comparison.layers, *comparison.sites]
    ]
    columns: list[str | Column] = [
        Column("site", code=True),
        "side",
        "widths",
        Column("residual", 3),
        Column("agreement", 3),
    ]
    blocks.append(Table(columns, rows, caption="Every matched site."))
    return Section("Site by site", blocks, detail=True)


def _by_role(residuals: Sequence[Residual]) -> dict[str, dict[int, float]]:
    """Return role → block → residual of the outputs."""
    by_role: dict[str, dict[int, float]] = defaultdict(dict)
    for residual in residuals:
        if residual.side == "output" and residual.block is not None:
            by_role[residual.role][residual.block] = residual.residual
    return dict(by_role)


def _of(stack: StackComparison) -> str:
    return f", {stack.target}" if stack.target not in ("", "text", "vision") else ""
