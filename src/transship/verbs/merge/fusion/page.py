"""What a fusion says of itself: accuracies after every model, forgetting, moved features, cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.data.locate import written_folder
from transship.numerics import format_bytes
from transship.outside import complete
from transship.report import Column as ReportColumn
from transship.report import (
    Facts,
    KeyFigure,
    KeyFigures,
    Page,
    Provenance,
    Section,
    Table,
    Text,
    library_versions,
)
from transship.report.blocks import Block
from transship.report.figures import heat_map, lines, scatter
from transship.verbs.merge.fusion.folder import kept_bytes, read_about
from transship.verbs.merge.fusion.measure import StepReport, summary
from transship.verbs.merge.fusion.task import FusedTask
from transship.verbs.merge.tasks.heads import FINISHED
from transship.verbs.merge.tasks.model import Rows, take

TSNE_TASKS = 8
TSNE_ROWS = 120
_LEFT_OUT = "The last task is left out of BWT: no model came after it."
_EMPTY = "no models yet; add one with: transship merge add OUT TUNED --data D"
_UNSCORED = "No test rows were given, or no model has a head: nothing could be scored."
_FLATTERED = (
    "Heads of kind tuned are tuned only when the next model arrives, so that their accuracy at arrival is "
    "that of an untuned head and their BWT is flattered. Read BWT with fixed heads."
)


def status(folder: Path) -> dict[str, Any]:
    """Return base, method, tasks, figures and bytes of a saved fusion; no model is opened."""
    with complete(folder / "fusion.json", "start the fusion again"):
        return _status(read_about(folder), folder, kept_bytes(folder))


def status_page(folder: Path) -> Page:
    """Return the page of a saved fusion; no model is opened."""
    folder = written_folder(folder)
    with complete(folder / "fusion.json", "start the fusion again"):
        return page(read_about(folder), folder=folder, sizes=kept_bytes(folder))


def page(
    about: Mapping[str, Any],
    *,
    folder: Path | None = None,
    sizes: Mapping[str, int] | None = None,
    pictures: Sequence[Block] | None = None,
) -> Page:
    """Return the page of a fusion.

    Args:
        about: what fusion.json holds.
        folder: where it is saved.
        sizes: part of the folder → bytes.
        pictures: of merged and own features; without any given, the page has no figures and no record.
    """
    facts = _status(about, folder, sizes or {})
    history = [StepReport(**step) for step in about["history"]]
    scores, base = facts["quality"], facts["base"]["name"]
    first = Section(
        "", [Facts(facts, shown=False), *([_key_figures(facts)] if about["tasks"] else []), *_notes(facts)]
    )
    sections = [
        first,
        Section("Tasks", [_tasks(about, history, facts["heads"][0])] if about["tasks"] else []),
        Section("Kinds of head", [_kinds(scores)] if len(scores["heads"]) > 1 else []),
        *([] if pictures is None else _figures(facts, history, pictures)),
        Section("Steps and what they cost", [_steps(history)], detail=True),
        Section("On disk", [_sizes(sizes)] if sizes and any(sizes.values()) else []),
    ]
    where = "" if folder is None else f"{folder}: "
    return Page(
        f"{where}{facts['method']} on {_short(base)}, heads {', '.join(facts['heads'])}",
        "" if about["tasks"] else _EMPTY,
        [section for section in sections if section.blocks],
        None if pictures is None else _provenance(about),
    )


def _figures(
    facts: Mapping[str, Any], history: Sequence[StepReport], pictures: Sequence[Block]
) -> list[Section]:
    scores = facts["quality"]
    return [
        Section("Accuracy after every model", _accuracy(scores, facts["heads"][0], history)),
        Section("How far features moved", _shift(scores["tasks"], history)),
        Section("Merged and own features", pictures),
    ]


def _provenance(about: Mapping[str, Any]) -> Provenance:
    inputs = [(task["source"], task["sha256"]) for task in about["tasks"]]
    return Provenance(
        "transship merge",
        {about["base"]["name"]: about["base"]["sha256"], **dict(inputs)},
        {name: str(value) for name, value in about["choices"].items()},
        library_versions(),
    )


def _status(about: Mapping[str, Any], folder: Path | None, sizes: Mapping[str, int]) -> dict[str, Any]:
    own = {task["name"]: task["individual"] for task in about["tasks"]}
    history = [StepReport(**step) for step in about["history"]]
    finished = about["choices"].get("finish", "none") != "none"
    return {
        "folder": str(folder),
        "base": about["base"],
        **about["choices"],
        "heads": [*([FINISHED] if finished else []), *about["choices"]["heads"]],
        "strength_used": about["strength"],
        "tasks": [
            {key: task[key] for key in ("name", "source", "sha256", "classes")} for task in about["tasks"]
        ],
        "quality": summary(history, list(own), own),
        "steps": about["history"],
        "bytes": sizes,
    }


def _key_figures(facts: Mapping[str, Any]) -> KeyFigures:
    kind, scores = facts["heads"][0], facts["quality"]
    figures = [KeyFigure("strength", round(facts["strength_used"], 3), "of the merged vector")]
    best = scores["heads"].get(kind)
    if best is not None:
        share = f"{100 * best['acc']:.1f} %"
        figures.insert(0, KeyFigure("ACC", share, f"mean over all tasks, {kind} heads", "good"))
        alone = scores["individual_mean"]
        if alone is not None:
            figures.append(KeyFigure("fine-tunes", f"{100 * alone:.1f} %", "each on its own task"))
        for name, key, note in (
            ("BWT", "bwt", "points since arrival; last task left out"),
            ("BWT, fixed heads", "bwt_fixed_heads", "the same with own heads only"),
        ):
            if best[key] is not None:
                figures.append(KeyFigure(name, f"{100 * best[key]:+.1f}", note))
    return KeyFigures(figures)


def _notes(facts: Mapping[str, Any]) -> list[Block]:
    kinds = facts["quality"]["heads"]
    unscored = [Text(_UNSCORED, "note")] if facts["tasks"] and not kinds else []
    return [*unscored, *([Text(_FLATTERED, "warning")] if "tuned" in kinds else [])]


def _tasks(about: Mapping[str, Any], history: Sequence[StepReport], kind: str) -> Table:
    last = history[-1]
    scores = last.accuracy.get(kind, {})
    rows = [
        [
            task["name"],
            task["classes"] or None,
            _percent(scores.get(task["name"])),
            _percent(task["individual"]),
            last.shift.get(task["name"]),
            last.sinkhorn.get(task["name"]),
            task["norm"],
            task["source"],
        ]
        for task in about["tasks"]
    ]
    columns: list[str | ReportColumn] = [
        "task",
        ReportColumn("classes", 0),
        ReportColumn(
            "accuracy, %", 1, help=f"of the merged model with {kind} heads, on the task's test rows"
        ),
        ReportColumn("own model, %", 1, help="of the fine-tune itself"),
        ReportColumn(
            "features moved", 3, help="Δ of Eqs. 1–2: mean L1 distance to the fine-tune's, kept inputs"
        ),
        ReportColumn("Sinkhorn", 4, help="debiased divergence of unit features, on kept inputs"),
        ReportColumn("‖τ‖", 3, help="length of the fine-tune's update"),
        ReportColumn("fine-tune", code=True),
    ]
    used = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    return Table(
        [columns[place] for place in used], [[row[place] for place in used] for row in rows], whole=True
    )


def _kinds(scores: Mapping[str, Any]) -> Table:
    keys = ("acc", "bwt", "bwt_fixed_heads")
    rows = [[kind, *(_percent(entry[key]) for key in keys)] for kind, entry in scores["heads"].items()]
    columns: list[str | ReportColumn] = [
        "heads",
        ReportColumn("ACC, %", 1, "max", "mean accuracy of all tasks after the last step"),
        ReportColumn("BWT, points", 1, help="final accuracy − accuracy at arrival, mean over tasks"),
        ReportColumn("BWT, fixed heads", 1, help="the same backbones under the tasks' own heads"),
    ]
    return Table(columns, rows, f"All kinds on the same merged backbones. {_LEFT_OUT}")


def _accuracy(scores: Mapping[str, Any], kind: str, history: Sequence[StepReport]) -> list[Block]:
    if not scores["heads"]:
        return []
    names = scores["tasks"]
    kind = kind if kind in scores["heads"] else next(iter(scores["heads"]))
    matrix = [[_percent(value) for value in row] for row in scores["heads"][kind]["matrix"]]
    blocks: list[Block] = [
        heat_map(
            matrix,
            rows=[_step_name(step) for step in history],
            columns=names,
            row_title="after",
            column_title="task",
            value_title="accuracy, %",
            caption=f"Accuracy in %, {kind} heads, each task's test rows, after every step. {_LEFT_OUT}",
            limits=(0.0, 100.0),
        )
    ]
    if len(history) > 1:
        known = [[value for value in row if value is not None] for row in matrix]
        mean = [sum(row) / len(row) if row else None for row in known]
        series = {name: [row[place] for row in matrix] for place, name in enumerate(names)}
        blocks.append(
            lines(
                _numbered(history),
                {**series, "mean of tasks so far": mean},
                x_title="step",
                y_title="accuracy, %",
                caption="The same numbers as curves.",
            )
        )
    return blocks


def _shift(names: Sequence[str], history: Sequence[StepReport]) -> list[Block]:
    if len(history) < 2 or not any(step.shift for step in history):
        return []
    return [
        lines(
            _numbered(history),
            {name: [step.shift.get(name) for step in history] for name in names},
            x_title="step",
            y_title="mean L1 distance",
            caption="Δ of Eqs. 1–2: the distance between the merged model's features and the task's own.",
        )
    ]


def feature_maps(tasks: Sequence[FusedTask], features: Callable[[str, Rows], Tensor]) -> list[Block]:
    """Return a map per task (the last few) of merged and own features of the same inputs (Figs. 3–10)."""
    from sklearn.manifold import TSNE  # start-up

    blocks: list[Block] = []
    for task in tasks[-TSNE_TASKS:]:
        kept = task.store.kept()
        if kept is None or kept.features is None or len(kept) < 10:
            continue
        count = min(len(kept), TSNE_ROWS)
        merged = features(task.name, take(kept.inputs, range(count)))
        both = torch.cat([merged, kept.features[:count]]).double().numpy()
        places = TSNE(
            n_components=2, perplexity=min(30.0, count / 2 - 1), init="pca", random_state=0
        ).fit_transform(np.ascontiguousarray(both))
        groups = {
            name: (part[:, 0].tolist(), part[:, 1].tolist())
            for name, part in (("merged model", places[:count]), ("own model", places[count:]))
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


def _steps(history: Iterable[StepReport]) -> Table:
    costs = ((step, step.seconds, step.cpu_seconds, format_bytes(step.memory)) for step in history)
    rows = [[_step_name(step), *cost, step.norm, step.strength] for step, *cost in costs]
    columns: list[str | ReportColumn] = [
        "step",
        ReportColumn("seconds", 1, help="wall time"),
        ReportColumn("CPU seconds", 1),
        ReportColumn("peak memory", help="anonymous memory of the process during the step"),
        ReportColumn("‖τ‖", 3, help="length of the merged vector, with its strength"),
        ReportColumn("strength", 2),
    ]
    caption = "Measured while the step ran; memory is the process's own, without mapped files."
    return Table(columns, rows, caption, sortable=False)


def _sizes(sizes: Mapping[str, int]) -> Table:
    return Table(["part", "bytes"], [[part, format_bytes(size)] for part, size in sizes.items() if size])


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _step_name(step: StepReport) -> str:
    return f"− {step.task}" if step.removed else f"+ {step.task}"


def _numbered(history: Iterable[StepReport]) -> list[str]:
    """Return names for an axis: no two alike, even where a task came, left and came again."""
    return [f"{number} {_step_name(step)}" for number, step in enumerate(history, 1)]


def _short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
