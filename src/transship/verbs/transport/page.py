"""The page of a transport: what moved, how well it aligned, which strength, what stayed and why."""

from typing import Any

from transship.report import Column as ReportColumn
from transship.report import KeyFigure, KeyFigures, Page, Provenance, Section, Table, Text, library_versions
from transship.report.blocks import Block
from transship.report.figures import heat_map, lines
from transship.verbs.transport.result import Result
from transship.verbs.transport.scores import Measured


def page(result: Result) -> Page:
    """Return the page."""
    sections = [Section("At a glance", [_key_figures(result), *_notes(result)])]
    if result.candidates:
        sections.append(Section("Methods compared", [_candidates(result)]))
    if len(result.choice.curve) > 1:
        sections.append(Section("Strength", [_curve(result)]))
    if result.metrics:
        rows = [[name, value] for name, value in result.metrics.items()]
        sections.append(Section("Measured", [Table(["measure", ReportColumn("value", decimals=4)], rows)]))
    if result.measured is not None:
        sections.append(Section("Test", _measured(result.measured)))
    sections.append(Section("Alignment", _alignment(result)))
    sections.append(Section("What moved", [_layers(result)]))
    sections.append(Section("What did not move, and why", [_left(result)]))
    return Page(
        f"{result.tuned.name} on {result.target.name}",
        f"What {result.tuned.name} learned on top of {result.source.name} was moved to {result.target.name} "
        f"by {result.method} at strength {result.strength:g} ({_how(result)}).",
        sections,
        Provenance(
            "transship transport",
            {one.name: one.fingerprint for one in result.inputs},
            {name: str(value) for name, value in result.parameters.items()},
            library_versions(),
        ),
    )


def _how(result: Result) -> str:
    names = {
        "validation": "the best on validation labels",
        "agreement": "the best agreement with the fine-tuned source, without labels",
        "given": "as given",
    }
    return names.get(result.choice.by, result.choice.by)


def _key_figures(result: Result) -> KeyFigures:
    moved = result.moved
    kept = moved.norm_after / moved.norm_before if moved.norm_before else float("nan")
    residuals = [layer.residual_out for layer in moved.layers if layer.residual_out is not None]
    figures = [
        KeyFigure("method", result.method),
        KeyFigure("strength", result.strength, _how(result)),
        KeyFigure(
            "tensors moved",
            len(moved.dense) if result.strength else 0,
            f"{len(moved.left)} listed as not moved" if result.strength else "strength 0 adds nothing",
        ),
        KeyFigure("norm kept", kept, "‖τ_B‖ / ‖τ_A‖ over all moved tensors"),
    ]
    if residuals:
        figures.append(
            KeyFigure("mean residual", sum(residuals) / len(residuals), "of output maps; 0 is perfect")
        )
    if result.choice.curve:
        figures.append(KeyFigure(result.choice.by, result.choice.score, "at the chosen strength", "good"))
    if result.head is not None:
        figures.append(KeyFigure("head fitted on", result.head.inputs, f"inputs, {result.head.kept} kept"))
    return KeyFigures(figures)


def _notes(result: Result) -> list[Block]:
    return [Text(note, "note") for note in result.notes]


def _candidates(result: Result) -> Table:
    rows = [[one.method, one.strength, one.agreement, one.validation] for one in result.candidates]
    columns: list[str | ReportColumn] = [
        "method",
        ReportColumn("strength", decimals=2),
        ReportColumn("agreement", decimals=4, best="max"),
        ReportColumn("validation", decimals=4, best="max"),
    ]
    return Table(columns, rows, f"Agreement with the fine-tuned source on {result.compared_on}.")


def _measured(measured: Measured) -> list[Block]:
    titles = measured.columns()
    columns: list[str | ReportColumn] = ["model"]
    columns += [ReportColumn(title, decimals=4) for title in titles.values()]
    rows: list[list[Any]] = [[row.model, *(getattr(row, name) for name in titles)] for row in measured.rows]
    blocks: list[Block] = [Table(columns, rows, measured.caption())]
    blocks += [Text(note, "note") for note in measured.notes]
    if measured.warm is not None:
        curves = measured.warm.curves()
        blocks.append(
            lines(
                [point.step for point in measured.warm.target],
                {name: [point.accuracy for point in curve] for name, curve in curves.items()},
                x_title="steps of fine-tuning",
                y_title="accuracy on test rows",
                caption=f"Fine-tunes on {measured.warm.labels} labels, the same batches for both; they begin "
                f"with {measured.warm.head}.",
            )
        )
    return blocks


def _curve(result: Result) -> Block:
    strengths = [strength for strength, _ in result.choice.curve]
    return lines(
        strengths,
        {result.choice.by: [score for _, score in result.choice.curve]},
        x_title="strength",
        y_title="accuracy" if result.choice.by == "validation" else "agreement with the fine-tuned source",
        caption="Every point is the same moved update at another strength; 0 is the untouched target.",
    )


def _layers(result: Result) -> Table:
    rows = [
        [
            layer.site,
            layer.tensor.rpartition(".")[2],
            layer.kept,
            None if layer.rank_in is None else f"{layer.rank_in[0]} of {layer.rank_in[1]}",
            None if layer.rank_out is None else f"{layer.rank_out[0]} of {layer.rank_out[1]}",
            layer.residual_in,
            layer.residual_out,
            layer.energy_in,
            layer.norm_before,
            layer.norm_after,
            layer.tensor,
        ]
        for layer in result.moved.layers
    ]
    columns: list[str | ReportColumn] = [
        "site",
        "of it",
        ReportColumn(
            "kept",
            decimals=3,
            help="‖τ_B‖ / ‖τ_A‖; below 1 where the target is narrower or inputs say nothing",
        ),
        ReportColumn("rank in", help="directions of the layer's inputs that the calibration inputs showed"),
        ReportColumn("rank out", help="likewise for its outputs"),
        ReportColumn(
            "residual in", decimals=3, help="1 − alignment of the two models' inputs here; 0 is perfect"
        ),
        ReportColumn("residual out", decimals=3, help="likewise for outputs"),
        ReportColumn("energy", decimals=3, help="share of ‖τ_A‖² in directions that the input map carries"),
        ReportColumn("‖τ_A‖", decimals=4),
        ReportColumn("‖τ_B‖", decimals=4),
        ReportColumn("tensor", code=True),
    ]
    return Table(columns, rows, "One row per moved tensor.")


def _alignment(result: Result) -> list[Block]:
    """Output residuals of the weights by block and role, where sites stand in blocks."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for layer in result.moved.layers:
        stack, _, rest = layer.site.partition(".")
        block, _, role = rest.partition(".")
        if layer.residual_out is not None and block.isdecimal():
            found.setdefault((stack, role), {})[block] = layer.residual_out
    made: list[Block] = []
    for stack in dict.fromkeys(stack for stack, _ in found):
        roles = [role for one, role in found if one == stack]
        blocks = sorted({block for role in roles for block in found[stack, role]}, key=int)
        made.append(
            heat_map(
                [[found[stack, role].get(block) for block in blocks] for role in roles],
                rows=roles,
                columns=blocks,
                row_title="role",
                column_title=f"block of {stack}",
                value_title="output residual",
                caption="1 − alignment of both base models' outputs at each site: 0 is perfect, 1 is none.",
                limits=(0.0, 1.0),
            )
        )
    return made or [Text("This method aligns no activations.")]


def _left(result: Result) -> Block:
    if not result.moved.left:
        return Text("Every change of the fine-tune was moved.", "good")
    rows = [
        [one.tensor, one.role, None if one.norm != one.norm else one.norm, one.reason]
        for one in result.moved.left
    ]
    return Table(
        [ReportColumn("tensor", code=True), "role", ReportColumn("‖τ_A‖", decimals=4), "reason"], rows
    )
