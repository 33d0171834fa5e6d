"""What a fine-tune leaves in a fusion: its head, its answers on kept inputs, its own accuracy."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from transship.errors import DataError
from transship.verbs.merge.fusion.choices import Choices
from transship.verbs.merge.fusion.origin import FineTune
from transship.verbs.merge.fusion.task import Kept, Task
from transship.verbs.merge.maths.states import norm
from transship.verbs.merge.protocol import Arrival
from transship.verbs.merge.tasks.heads import LABELLED, LinearHead, accuracy
from transship.verbs.merge.tasks.rows import TaskRows, TestRows, take


def check_inputs(tuned: FineTune, rows: TaskRows, choices: Choices, *, joins: bool) -> None:
    """Refuse a task without inputs where the method needs some, or, for one that joins, its head."""
    carried = [kind for kind in choices.fitting.kinds if joins and kind.startswith("carried")]
    what = ""
    if choices.method.needs_data:
        what = choices.method_name
    elif carried and tuned.model.head is not None:
        what = f"a head of kind '{carried[0]}'"
    if what and not len(rows.inputs):
        raise DataError(f"{what} needs inputs of the task", where=tuned.source, fix="give them with --data")


def new_task(
    name: str, tuned: FineTune, rows: TaskRows, arrival: Arrival, choices: Choices, about: Mapping[str, Any]
) -> tuple[Task, Tensor | None]:
    """Return the task, and its own model's outputs on the rows that use them; its weights are used up."""
    model, weights, test = tuned.model, arrival.tuned, rows.test
    size = choices.fitting.batch_size
    kept: Kept | None = None
    outputs: Tensor | None = None
    individual: float | None = None
    if model.head is not None and test is not None and choices.evaluate:
        _check_classes(test, model.head, name)
        features = model.over(test.inputs).features(weights, size)
        individual = accuracy(model.head(features), test.labels)
    if len(rows.inputs):
        every = len(rows.inputs)
        count = every if choices.keep_inputs is None else min(choices.keep_inputs, every)
        asked = _asked(choices, count, every)
        own: Tensor | None = None
        if asked:
            chosen = rows.inputs if asked == every else take(rows.inputs, range(asked))
            own = model.over(chosen).features(weights, size)
            outputs = None if model.head is None else model.head(own)
        labelled = rows.labels is not None and LABELLED & set(choices.fitting.kinds)
        if count:
            kept = Kept(
                take(rows.inputs, range(count)),
                None if own is None else own[:count].clone(),
                None if outputs is None else outputs[:count].clone(),
                rows.labels[:count] if rows.labels is not None and labelled else None,
            )
    task = Task(
        name,
        tuned.fingerprint,
        tuned.source,
        opener=lambda: model,
        keeper=lambda: kept,
        tester=lambda: test,
        files=None if tuned.files is None else lambda: tuned.files,
        heads={} if model.head is None else {"own": model.head},
        norm=norm(tuned.update),
        individual=individual,
        label_names=tuned.label_names,
        about={**rows.about, **about},
    )
    return task, outputs


def _asked(choices: Choices, kept: int, every: int) -> int:
    """Return of how many rows the fine-tune's own answers are used: by heads, or to measure against."""
    kinds = choices.fitting.kinds
    if "carried-once" in kinds:
        return every
    carried = any(kind.startswith("carried") for kind in kinds)
    return kept if carried or choices.evaluate or choices.strength == "validation" else 0


def _check_classes(test: TestRows, head: LinearHead, name: str) -> None:
    classes = head.weight.shape[0]
    if len(test.labels) and int(test.labels.max()) >= classes:
        raise DataError(
            f"a label is class {int(test.labels.max())} and its head has {classes} outputs",
            where=name,
            fix="give the data that it was tuned for",
        )
