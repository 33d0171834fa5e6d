"""A model joins a fusion, or leaves it: what arrives is planned, read, and settled into a new value."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from transship.errors import DataError, OptionError
from transship.progress import Progress, quiet
from transship.verbs.merge.fusion.choices import Choices
from transship.verbs.merge.fusion.finishing import FinishedFusion, finish_fusion
from transship.verbs.merge.fusion.measure import StepReport
from transship.verbs.merge.fusion.origin import FineTune, FusionOrigin
from transship.verbs.merge.fusion.refresh import find_strength, refresh, scaled
from transship.verbs.merge.fusion.task import Fused, FusedTask, Kept, TaskStore
from transship.verbs.merge.maths.states import State, Vector, norm
from transship.verbs.merge.protocol import Arrival
from transship.verbs.merge.tasks.heads import FINISHED, LABELLED, LinearHead, accuracy, carry
from transship.verbs.merge.tasks.model import TaskModel, TaskRows, TestRows, take, task_rows


@dataclass(frozen=True, eq=False)
class Step:
    """A model that comes or goes, checked, with its rows.

    Attributes:
        name: of its task.
        tuned: the model as an update of the base.
        rows: what it brings.
        arrival: what the method reads.
    """

    name: str
    tuned: FineTune
    rows: TaskRows
    arrival: Arrival


@dataclass(frozen=True)
class Ending:
    """How a step ends.

    Attributes:
        wanted: whether it is finished, where the fusion is; a row of steps needs that once.
        folder: keeps the state of a finish that is killed.
        progress: is told how far it is.
    """

    wanted: bool = True
    folder: Path | None = None
    progress: Progress = quiet


def plan_add(
    fused: Fused,
    origin: FusionOrigin,
    choices: Choices,
    tuned: Any,
    data: Any,
    *,
    name: str | None,
    labels: Any,
    test: Any,
    inputs: int | None,
    test_rows: int | None,
) -> Step:
    """Return a model that can join, or say in one sentence why it cannot."""
    name = free_name([task.name for task in fused.tasks], tuned, name)
    coming = origin.admit(tuned, name, fused.names)
    for task in fused.tasks:
        if task.fingerprint == coming.fingerprint:
            raise OptionError(
                f"the same model was added before, as '{task.name}'",
                where=coming.source,
                fix="give another fine-tune; merge status lists those that are in",
            )
    rows = task_rows(
        data,
        labels if LABELLED & set(choices.heads) or labels is None else None,
        test,
        label_names=coming.label_names,
        label_share=choices.head_settings.label_share,
        most=inputs,
        seed=choices.seed,
        where=name,
        most_test=test_rows,
    )
    carried = [kind for kind in choices.heads if kind.startswith("carried")]
    headed = bool(carried) and coming.model.head is not None
    _check_inputs(coming, rows, choices, f"a head of kind '{carried[0]}'" if headed else "")
    previous: TaskModel | None = None
    if choices.method.replay and fused.tasks:
        last = fused.tasks[-1].store
        kept = last.kept()
        previous = last.model().over(None if kept is None else kept.inputs)
    return _step(name, coming, rows, origin, choices, len(fused.tasks) + 1, previous)


def plan_remove(
    fused: Fused, origin: FusionOrigin, choices: Choices, tuned: Any, data: Any, *, inputs: int | None
) -> tuple[Step, FusedTask]:
    """Return a model that can leave and its task, or say in one sentence why it cannot."""
    if not choices.method.additive:
        raise OptionError(
            f"{choices.method_name} cannot take a model out: its state is no sum over models",
            where="merge remove",
            fix="start again without that model, or with average, task-arithmetic, regmean or fisher",
        )
    going = origin.admit(tuned, _reference(tuned), fused.names)
    task = next((task for task in fused.tasks if task.fingerprint == going.fingerprint), None)
    if task is None:
        raise OptionError(
            "it is not among the models that were added",
            where=going.source,
            fix=f"choose one of {', '.join(task.source for task in fused.tasks) or 'none'}",
        )
    rows = task_rows(
        data,
        None,
        None,
        label_names=going.label_names,
        label_share=choices.head_settings.label_share,
        most=inputs if inputs is not None else task.about.get("rows"),
        seed=choices.seed,
        where=task.name,
    )
    known = task.about.get("data_fingerprint")
    if choices.method.needs_data and known is not None and known != rows.about.get("data_fingerprint"):
        raise DataError(
            f"it was added with other data ({task.about.get('data')})",
            where=task.name,
            fix="give the same data, so that the same numbers are taken out",
        )
    _check_inputs(going, rows, choices)
    return _step(task.name, going, rows, origin, choices, len(fused.tasks)), task


def _step(
    name: str,
    tuned: FineTune,
    rows: TaskRows,
    origin: FusionOrigin,
    choices: Choices,
    number: int,
    previous: TaskModel | None = None,
) -> Step:
    incoming, base = tuned.model.over(rows.inputs), origin.backbone(tuned.update)
    return Step(name, tuned, rows, Arrival(number, base, tuned.update, incoming, previous, choices.seed))


def add(fused: Fused, choices: Choices, step: Step, about: Mapping[str, Any], ending: Ending) -> Fused:
    """Return the fusion with one more model; `about` says how its test rows are found again."""
    method, arrival = choices.method, step.arrival
    state = method.add(fused.state, arrival) if fused.state else method.first(arrival)
    task, outputs = _new_task(step, choices, about)
    return _settled(fused, choices, step, state, (*fused.tasks, task), ending, outputs)


def remove(fused: Fused, choices: Choices, step: Step, task: FusedTask, ending: Ending) -> Fused:
    """Return the fusion as if the model had never come."""
    tasks = tuple(other for other in fused.tasks if other is not task)
    state = choices.method.remove(fused.state, step.arrival) if tasks else {}
    return _settled(fused, choices, step, state, tasks, ending, removed=True)


def _settled(
    fused: Fused,
    choices: Choices,
    step: Step,
    state: State,
    tasks: tuple[FusedTask, ...],
    ending: Ending,
    outputs: Tensor | None = None,
    *,
    removed: bool = False,
) -> Fused:
    """Return the fusion with a new state: strength and heads are found for it, and all is measured.

    Args:
        fused: the fusion before.
        choices: what was chosen for it.
        step: the model that came or went.
        state: the method's, after it.
        tasks: that are in now.
        ending: how it is finished.
        outputs: what the model that came says itself, for heads that are carried once.
        removed: whether it went.
    """
    base = step.arrival.base
    vector = choices.method.merged(state, base) if state else {}
    strength = find_strength(base, vector, tasks, choices) if tasks else 1.0
    backbone = scaled(base, vector, strength)
    if outputs is not None and "carried-once" in choices.heads:
        features = step.tuned.model.over(step.rows.inputs).features(backbone, choices.batch_size)
        once = carry(features, outputs, tasks[-1].heads["own"], choices.head_settings)
        tasks = (*tasks[:-1], replace(tasks[-1], heads={**tasks[-1].heads, "carried-once": once}))
    details = {key: float(value) for key, value in state.get("numbers", {}).items()}
    done = FinishedFusion(tasks=tasks)
    if FINISHED in choices.heads:
        finishing = replace(choices, finish=choices.finish if ending.wanted else "none")
        done = finish_fusion(tasks, backbone, finishing, folder=ending.folder, progress=ending.progress)
        if done.change:
            backbone = {name: tensor + done.change[name] for name, tensor in backbone.items()}
    tasks, measured = refresh(done.tasks, backbone, choices)
    report = StepReport(
        len(tasks),
        step.name,
        **vars(measured),
        strength=strength,
        norm=norm(vector) * abs(strength),
        removed=removed,
        details={**details, **done.details},
    )
    history = (*fused.history, report)
    return Fused(tuple(step.arrival.update), state, strength, tasks, history, done.change)


def free_name(taken: Sequence[str], tuned: Any, name: str | None) -> str:
    """Return the task's name: as asked for, or the folder's, numbered where it is taken."""
    if name is not None:
        if name in taken:
            raise OptionError(f"there is a task '{name}' already", where="--name", fix="choose another name")
        if not re.fullmatch(r"[\w][\w.-]*", name):
            raise OptionError(
                f"'{name}' cannot be a folder's name", where="--name", fix="use letters, digits, - and ."
            )
        return name
    last = _reference(tuned).rstrip("/").rsplit("/", 1)[-1]
    stem = re.sub(r"[^\w.-]+", "-", last).strip(".-") or "task"
    number, free = 1, stem
    while free in taken:
        number += 1
        free = f"{stem}-{number}"
    return free


def _reference(tuned: Any) -> str:
    return str(tuned) if isinstance(tuned, str | Path) else getattr(tuned, "name", None) or "task"


def _check_inputs(tuned: FineTune, rows: TaskRows, choices: Choices, head: str = "") -> None:
    """Refuse a task without inputs where the method, or a head, needs some."""
    what = choices.method_name if choices.method.needs_data else head
    if what and not len(rows.inputs):
        raise DataError(f"{what} needs inputs of the task", where=tuned.source, fix="give them with --data")


def _new_task(step: Step, choices: Choices, about: Mapping[str, Any]) -> tuple[FusedTask, Tensor | None]:
    """Return what a fine-tune leaves in a fusion, and its own outputs on the rows that use them."""
    tuned, rows = step.tuned, step.rows
    model, weights, test = tuned.model, step.arrival.tuned, rows.test
    individual: float | None = None
    if model.head is not None and test is not None and choices.evaluate:
        _check_classes(test, model.head, step.name)
        features = model.over(test.inputs).features(weights, choices.batch_size)
        individual = accuracy(model.head(features), test.labels)
    kept, outputs = _own_answers(model, weights, rows, choices) if len(rows.inputs) else (None, None)
    task = FusedTask(
        step.name,
        tuned.fingerprint,
        tuned.source,
        TaskStore(lambda: model, lambda: kept, lambda: test, lambda: tuned.files),
        heads={} if model.head is None else {"own": model.head},
        norm=norm(tuned.update),
        individual=individual,
        label_names=tuned.label_names,
        about={**rows.about, **about},
    )
    return task, outputs


def _own_answers(
    model: TaskModel, weights: Vector, rows: TaskRows, choices: Choices
) -> tuple[Kept | None, Tensor | None]:
    """Return what is kept of the inputs, and the fine-tune's outputs on the rows that use them."""
    every = len(rows.inputs)
    count = every if choices.keep_inputs is None else min(choices.keep_inputs, every)
    asked = _asked(choices, count, every)
    own = outputs = labels = None
    if asked:
        chosen = rows.inputs if asked == every else take(rows.inputs, range(asked))
        own = model.over(chosen).features(weights, choices.batch_size)
        outputs = None if model.head is None else model.head(own)
    if rows.labels is not None and LABELLED & set(choices.heads):
        labels = rows.labels[:count]
    if not count:
        return None, outputs
    features, answers = (None if each is None else each[:count].clone() for each in (own, outputs))
    return Kept(take(rows.inputs, range(count)), features, answers, labels), outputs


def _asked(choices: Choices, kept: int, every: int) -> int:
    """Return of how many rows the fine-tune's own answers are used: by heads, or to measure against."""
    if "carried-once" in choices.heads:
        return every
    carried = any(kind.startswith("carried") or kind == FINISHED for kind in choices.heads)
    return kept if carried or choices.evaluate or choices.strength == "validation" else 0


def _check_classes(test: TestRows, head: LinearHead, name: str) -> None:
    classes = head.weight.shape[0]
    if len(test.labels) and int(test.labels.max()) >= classes:
        raise DataError(
            f"a label is class {int(test.labels.max())} and its head has {classes} outputs",
            where=name,
            fix="give the data that it was tuned for",
        )
