"""The page of a fusion: accuracies of all tasks after every model, forgetting, moved features, cost."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from transship.numerics import format_bytes
from transship.report import Column as ReportColumn
from transship.report import KeyFigure, KeyFigures, Page, Provenance, Section, Table, Text, library_versions
from transship.report.blocks import Block
from transship.report.figures import heat_map, lines, scatter

if TYPE_CHECKING:
    from transship.verbs.merge.fusion.engine import Fusion

TSNE_TASKS = 8
TSNE_ROWS = 120
_LEFT_OUT = "The last task is left out of BWT: no model came after it."


def page(fusion: "Fusion") -> Page:
    """Return the page."""
    found = fusion.summary()
    sections = [Section("At a glance", [_key_figures(fusion, found), *_notes(fusion, found)])]
    if found["heads"]:
        sections.append(Section("Accuracy after every model", _accuracy(fusion, found)))
        sections.append(Section("Kinds of head", [_heads(found)]))
    if any(step.shift for step in fusion.history):
        sections.append(Section("How far features moved", _shift(fusion)))
        pictures = _tsne(fusion)
        if pictures:
            sections.append(Section("Merged and own features", pictures))
    sections.append(Section("Steps and what they cost", [_steps(fusion)]))
    if fusion.tasks:
        sections.append(Section("Tasks", [_tasks(fusion)]))
    return Page(
        f"{len(fusion.tasks)} fine-tunes of {_short(fusion.origin.name)} in one model",
        _summary(fusion, found),
        sections,
        Provenance(
            "transship merge",
            {fusion.origin.name: fusion.origin.fingerprint()}
            | {task.source: task.fingerprint for task in fusion.tasks},
            {name: str(value) for name, value in fusion.choices.as_dict().items()},
            library_versions(),
        ),
    )


def _summary(fusion: "Fusion", found: dict[str, Any]) -> str:
    text = f"Merged one after another by {fusion.choices.method_name}, with heads of kind {fusion.heads[0]}."
    best = found["heads"].get(fusion.heads[0])
    if best is None:
        return text
    text += f" Mean accuracy over all tasks is {100 * best['acc']:.1f} %"
    if found["individual_mean"] is not None:
        text += f"; the fine-tunes themselves have {100 * found['individual_mean']:.1f} %"
    return text + "."


def _key_figures(fusion: "Fusion", found: dict[str, Any]) -> KeyFigures:
    figures = [
        KeyFigure("method", fusion.choices.method_name),
        KeyFigure("tasks", len(fusion.tasks)),
        KeyFigure("strength", round(fusion.strength, 3), "of the merged vector"),
    ]
    best = found["heads"].get(fusion.heads[0])
    if best is not None:
        figures.append(KeyFigure("ACC", f"{100 * best['acc']:.1f} %", f"{fusion.heads[0]} heads", "good"))
        if found["individual_mean"] is not None:
            figures.append(
                KeyFigure("fine-tunes", f"{100 * found['individual_mean']:.1f} %", "each on its own task")
            )
        if best["bwt"] is not None:
            figures.append(KeyFigure("BWT", f"{100 * best['bwt']:+.1f}", "points; last task left out"))
            if best["bwt_fixed_heads"] is not None:
                figures.append(
                    KeyFigure("BWT, fixed heads", f"{100 * best['bwt_fixed_heads']:+.1f}", "own heads only")
                )
    return KeyFigures(figures)


def _notes(fusion: "Fusion", found: dict[str, Any]) -> list[Block]:
    notes: list[Block] = []
    if not found["heads"] and fusion.tasks:
        notes.append(
            Text("No test rows were given, or no model has a head: nothing could be scored.", "note")
        )
    if "tuned" in found["heads"]:
        notes.append(
            Text(
                "Heads of kind tuned are tuned only when the next model arrives, so that their accuracy at "
                "arrival is that of an untuned head and their BWT is flattered. Read BWT with fixed heads.",
                "warning",
            )
        )
    return notes


def _accuracy(fusion: "Fusion", found: dict[str, Any]) -> list[Block]:
    names = found["tasks"]
    kind = fusion.heads[0] if fusion.heads[0] in found["heads"] else next(iter(found["heads"]))
    shares = found["heads"][kind]["matrix"]
    matrix = [[None if value is None else 100 * value for value in row] for row in shares]
    steps = [_step_name(step) for step in fusion.history]
    blocks: list[Block] = [
        heat_map(
            matrix,
            rows=steps,
            columns=names,
            row_title="after",
            column_title="task",
            value_title="accuracy, %",
            caption=f"Accuracy in %, {kind} heads, each task's test rows, after every step. {_LEFT_OUT}",
            limits=(0.0, 100.0),
        )
    ]
    if len(steps) > 1:
        series = {name: [row[place] for row in matrix] for place, name in enumerate(names)}
        mean = [
            sum(known) / len(known) if (known := [value for value in row if value is not None]) else None
            for row in matrix
        ]
        blocks.append(
            lines(
                _numbered(steps),
                {**series, "mean of tasks seen": mean},
                x_title="step",
                y_title="accuracy, %",
                caption="The same numbers as curves.",
            )
        )
    return blocks


def _heads(found: dict[str, Any]) -> Table:
    rows = [
        [
            kind,
            100 * entry["acc"],
            None if entry["bwt"] is None else 100 * entry["bwt"],
            None if entry["bwt_fixed_heads"] is None else 100 * entry["bwt_fixed_heads"],
        ]
        for kind, entry in found["heads"].items()
    ]
    columns: list[str | ReportColumn] = [
        "heads",
        ReportColumn("ACC, %", decimals=1, best="max", help="mean accuracy of all tasks after the last step"),
        ReportColumn("BWT, points", decimals=1, help="final accuracy − accuracy at arrival, mean over tasks"),
        ReportColumn("BWT, fixed heads", decimals=1, help="the same backbones under the tasks' own heads"),
    ]
    return Table(columns, rows, f"All kinds on the same merged backbones. {_LEFT_OUT}")


def _shift(fusion: "Fusion") -> list[Block]:
    names = [task.name for task in fusion.tasks]
    steps = _numbered([_step_name(step) for step in fusion.history])
    blocks: list[Block] = []
    if len(steps) > 1:
        blocks.append(
            lines(
                steps,
                {name: [step.shift.get(name) for step in fusion.history] for name in names},
                x_title="step",
                y_title="mean L1 distance",
                caption="Δ of Eqs. 1–2: the distance between the merged model's features and the task's own.",
            )
        )
    last = fusion.history[-1]
    rows = [[name, last.shift.get(name), last.sinkhorn.get(name)] for name in names if name in last.shift]
    columns: list[str | ReportColumn] = [
        "task",
        ReportColumn("Δ (L1)", decimals=3, best="min"),
        ReportColumn("Sinkhorn", decimals=4, best="min", help="debiased divergence of unit features"),
    ]
    blocks.append(Table(columns, rows, "After the last step, on kept inputs."))
    return blocks


def _tsne(fusion: "Fusion") -> list[Block]:
    """Return a map per task (the last few) of merged and own features of the same inputs (Figs. 3–10)."""
    from sklearn.manifold import TSNE

    from transship.verbs.merge.tasks.rows import take

    blocks: list[Block] = []
    for task in fusion.tasks[-TSNE_TASKS:]:
        kept = task.keeper()
        if kept is None or kept.features is None or len(kept) < 10:
            continue
        count = min(len(kept), TSNE_ROWS)
        merged = fusion.features(task.name, take(kept.inputs, range(count)))
        both = torch.cat([merged, kept.features[:count]]).double().numpy()
        places = TSNE(
            n_components=2, perplexity=min(30.0, count / 2 - 1), init="pca", random_state=0
        ).fit_transform(np.ascontiguousarray(both))
        groups = {
            "merged model": (places[:count, 0].tolist(), places[:count, 1].tolist()),
            "own model": (places[count:, 0].tolist(), places[count:, 1].tolist()),
        }
        blocks.append(
            scatter(
                groups,
                x_title="t-SNE 1",
                y_title="t-SNE 2",
                caption=f"{task.name}: features of the same {count} inputs in the merged model and its own.",
            )
        )
    return blocks


def _steps(fusion: "Fusion") -> Table:
    rows = [
        [
            _step_name(step),
            step.seconds,
            step.cpu_seconds,
            format_bytes(step.memory),
            step.norm,
            step.strength,
        ]
        for step in fusion.history
    ]
    columns: list[str | ReportColumn] = [
        "step",
        ReportColumn("seconds", decimals=1, help="wall time"),
        ReportColumn("CPU seconds", decimals=1),
        ReportColumn("peak memory", help="anonymous memory of the process during the step"),
        ReportColumn("‖τ‖", decimals=3, help="length of the merged vector, with its strength"),
        ReportColumn("strength", decimals=2),
    ]
    return Table(
        columns,
        rows,
        "Measured while the step ran; memory is the process's own, without mapped files.",
        sortable=False,
    )


def _tasks(fusion: "Fusion") -> Table:
    rows = []
    for task in fusion.tasks:
        kept = task.keeper()
        rows.append(
            [
                task.name,
                task.classes or None,
                None if task.individual is None else 100 * task.individual,
                task.norm,
                0 if kept is None else len(kept),
                task.source,
            ]
        )
    columns: list[str | ReportColumn] = [
        "task",
        ReportColumn("classes", decimals=0),
        ReportColumn("own model, %", decimals=1),
        ReportColumn("‖τ‖", decimals=3),
        ReportColumn("kept inputs", decimals=0),
        ReportColumn("fine-tune", code=True),
    ]
    return Table(columns, rows)


def _step_name(step: Any) -> str:
    return f"− {step.task}" if step.removed else f"+ {step.task}"


def _numbered(steps: list[str]) -> list[str]:
    """Return names for an axis: no two alike, even where a task came, left and came again."""
    return [f"{number} {step}" for number, step in enumerate(steps, 1)]


def _short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
