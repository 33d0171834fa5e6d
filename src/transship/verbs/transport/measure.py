"""Measure a transport on labelled rows that it never saw, where what is measured chooses nothing; and how it
answers as it is written, after strengths, heads and finishes, on inputs that nothing was fitted on.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transship import parallel
from transship.activations.readout import Reading, Readout, Task
from transship.checkpoints.card import Input
from transship.progress import Progress, quiet
from transship.verbs.transport.account import CHECKED
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.labelled import MeasureRows
from transship.verbs.transport.move import Moved
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.result import Result
from transship.verbs.transport.rows import as_outputs
from transship.verbs.transport.runner import fit_head
from transship.verbs.transport.scores import (
    Row,
    Scores,
    WarmStart,
    milestones,
    probe,
    reuse_head,
    warm_start,
)
from transship.verbs.transport.statistics import Prepared
from transship.verbs.transport.teacher import agreement
from transship.verbs.transport.verdict import Check
from transship.verbs.transport.weights import shifted

# of the untouched and of the transported target
Heads = tuple[CarriedHead | None, CarriedHead | None]


@dataclass(frozen=True, eq=False)
class _Readings:
    """What one model says: on the test rows, the probe's rows and the original domain."""

    test: Reading | None
    train: Reading | None
    original: Reading | None


def measure(
    plan: Plan, prepared: Prepared, result: Result, rows: MeasureRows, *, progress: Progress = quiet
) -> Result:
    """Return the result with the table of the fine-tuned source, the untouched and the transported target."""
    heads: Heads = None, None
    if result.head is not None:
        penalty = result.parameters.get("penalty")
        heads = fit_head(plan, prepared, penalty, Moved(), 0.0), result.head
    readings = list(_readings(plan, rows, result, progress))
    with plan.running_tuned() as tuned:
        table = [_row("source, fine-tuned", rows, readings[0], "tuned")]
        for name, reading, head in zip(("untouched", "transported"), readings[1:], heads, strict=True):
            row = _row(f"target, {name}", rows, reading, "target")
            table.append(_with_other_heads(row, rows, reading, readings[0], tuned, head))
    measured = _table(rows, table, result.head)
    if rows.warm_steps:
        measured = dataclasses.replace(measured, warm=_warmed(plan, rows, result, heads))
    given = (("test", rows.test), ("original", rows.original))
    inputs = [Input(role, data.name, data.fingerprint) for role, data in given if data is not None]
    return dataclasses.replace(result, measured=measured, inputs=[*result.inputs, *inputs])


def _readings(plan: Plan, rows: MeasureRows, result: Result, progress: Progress) -> Iterator[_Readings]:
    """Yield what the fine-tuned source, the untouched and the transported target say."""
    size, count = plan.settings.batch_size, len(rows)

    def read(readout: Readout, number: int) -> _Readings:
        progress("test", number * count, 3 * count)
        test = None if rows.test is None else rows.test.read(readout, size)
        train = None if rows.test is None else rows.train.read(readout, size)
        return _Readings(test, train, None if rows.original is None else rows.original.read(readout, size))

    with plan.running_tuned() as tuned:
        yield read(tuned, 0)
    for number, strength in enumerate((0.0, result.strength)):
        with shifted(plan.target.model.model, result.moved.dense, strength):
            yield read(plan.target_readout, number + 1)
    progress("test", 3 * count, 3 * count)


def _row(model: str, rows: MeasureRows, readings: _Readings, whose: str) -> Row:
    """Return a model's own head and its probe."""
    row, test, train = Row(model), rows.test, rows.train
    if test is not None and readings.test is not None and readings.train is not None:
        own = _score(readings.test.outputs, getattr(test, whose))
        probed = None
        if isinstance(test.known, Tensor):
            assert isinstance(train.labels, Tensor)
            classes = len(train.names) or None
            outputs = probe(readings.train.features, train.labels, readings.test.features, classes)
            probed = _score(outputs, test.known)
        row = dataclasses.replace(row, own_head=own, probe=probed)
    if rows.original is not None and readings.original is not None:
        original = _score(readings.original.outputs, getattr(rows.original, whose))
        row = dataclasses.replace(row, original=original)
    return row


def _with_other_heads(
    row: Row,
    rows: MeasureRows,
    readings: _Readings,
    theirs: _Readings,
    tuned: Readout,
    head: CarriedHead | None,
) -> Row:
    """Add the fine-tuned source's head through the map of features, and the carried head."""
    if rows.test is not None and isinstance(rows.test.tuned, Tensor):
        assert readings.test is not None
        assert readings.train is not None
        assert theirs.train is not None
        outputs = reuse_head(
            tuned.loaded, readings.train.features, theirs.train.features, readings.test.features
        )
        row = dataclasses.replace(row, reused_head=_score(outputs, rows.test.tuned))
        if head is not None:
            row = dataclasses.replace(row, carried_head=_carried(head, readings.test, rows.test.tuned))
    if head is not None and rows.original is not None and readings.original is not None:
        original = _carried(head, readings.original, rows.original.tuned)
        row = dataclasses.replace(row, original_carried=original)
    return row


def _warmed(plan: Plan, rows: MeasureRows, result: Result, carried: Heads) -> WarmStart:
    """Fine-tune both targets on the calibration labels: with their carried heads where there are such, with
    the target's own where it has the classes, and otherwise with new ones.
    """
    test, draws, target = rows.test, plan.draws, plan.target_readout
    assert test is not None
    assert draws.calibration_labels is not None
    known = draws.calibration_labels, draws.label_names
    heads: tuple[nn.Linear, nn.Linear] | None = None
    labels, answers, head = as_outputs(*known, target, "target", partly=True), test.target, "its own head"
    before, after = carried
    if before is not None and after is not None:
        labels, answers = as_outputs(*known, plan.tuned_readout, "fine-tune", partly=True), test.tuned
        heads, head = (before.linear(), after.linear()), "a carried head"
    if isinstance(labels, str) or isinstance(answers, str):
        labels, answers, head = draws.calibration_labels, test.known, "a new head"
        new = _new_head(target, draws.calibration, len(draws.label_names) or int(labels.max()) + 1)
        heads = (new, new)
    assert isinstance(answers, Tensor)
    return warm_start(
        result,
        (draws.calibration, labels.long()),
        (test.inputs, answers.long()),
        heads=heads,
        head=head,
        steps=milestones(rows.warm_steps),
        batch_size=plan.settings.batch_size,
        seed=plan.settings.seed,
    )


def _table(rows: MeasureRows, table: Sequence[Row], head: CarriedHead | None) -> Scores:
    test, original = rows.test, rows.original
    first = test or original
    assert first is not None
    labels = [given for given in (first.known, first.tuned, first.target) if isinstance(given, Tensor)]
    probed = test is not None and isinstance(test.known, Tensor)
    return Scores(
        tuple(table),
        "rank correlation" if labels[0].dtype.is_floating_point else "accuracy",
        None if test is None else test.name,
        0 if test is None else len(test),
        None if original is None else original.name,
        0 if original is None else len(original),
        len(rows.train.labels) if probed else 0,
        tuple(_notes(rows, head)),
        unit="rows" if first.words is None else "words",
        majority=None if test is None else _majority(labels[0]),
    )


def _majority(labels: Tensor) -> float | None:
    """Return the share of the most common class; None for values."""
    if labels.dtype.is_floating_point or not len(labels):
        return None
    return float(labels.long().bincount().max()) / len(labels)


def _notes(rows: MeasureRows, head: CarriedHead | None) -> Iterator[str]:
    for data in (rows.test, rows.original):
        yield from [] if data is None else data.notes()
    if rows.test is not None:
        for what, labels in (
            ("the fine-tune's head was", rows.test.tuned),
            ("TARGET's own head was", rows.test.target),
            ("the probe was", rows.test.known),
        ):
            if isinstance(labels, str):
                yield f"{what} not measured: {labels}"
    if head is not None:
        yield "what is written answers with its carried head"
        if rows.original is not None and isinstance(rows.original.tuned, str):
            yield f"which has none of the original domain's answers: {rows.original.tuned}"


def _new_head(target: Readout, inputs: Sequence[object], classes: int) -> nn.Linear:
    """Return a head of zeros on the target's features."""
    head = nn.Linear(target.all(inputs[:1]).features.shape[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _score(outputs: Tensor | None, labels: Tensor | str) -> float | None:
    if outputs is None or isinstance(labels, str):
        return None
    task: Task = "values" if labels.dtype.is_floating_point else "classes"
    return agreement(outputs.cpu(), labels, task)


def _carried(head: CarriedHead, reading: Reading, labels: Tensor | str) -> float | None:
    return (
        None if isinstance(labels, str) else _score(head.map.apply(reading.features.cpu().double()), labels)
    )


def check(plan: Plan, result: Result) -> Result:
    """Return a classifier's result with what it answers: as labelled on the validation rows, otherwise as the
    fine-tuned source does on the inputs that were held out.
    """
    labels, draws = plan.labels, plan.draws
    if plan.task != "classes" or (result.head is None and not plan.own_head):
        return result
    if isinstance(labels, Tensor) and not labels.dtype.is_floating_point and draws.validation is not None:
        theirs = _share(_tuned_outputs(plan, draws.validation), labels)
        share, common = (
            _share(_outputs(plan, result, draws.validation), labels),
            labels.long().bincount().max(),
        )
        checked = Check(share, len(labels), theirs, float(common) / len(labels))
    elif len(draws.held_out):
        wanted = _tuned_outputs(plan, draws.held_out)
        assert wanted is not None
        share = _share(_outputs(plan, result, draws.held_out), wanted.argmax(1))
        checked = Check(share, len(draws.held_out), fitted=draws.held_out_fitted)
    else:
        return result
    return dataclasses.replace(
        result, check=checked, metrics={**result.metrics, CHECKED[checked.labelled]: share}
    )


def _outputs(plan: Plan, result: Result, inputs: Sequence[Any]) -> Tensor | None:
    """Return what the target with the moved update says, through the head that is written."""
    with torch.no_grad(), shifted(plan.target.model.model, result.moved.dense, result.strength):
        reading = plan.target_readout.all(inputs)
    if result.head is None:
        return reading.outputs
    return result.head.map.apply(reading.features.cpu().double())


def _tuned_outputs(plan: Plan, inputs: Sequence[Any]) -> Tensor | None:
    with plan.running_tuned() as tuned:
        return tuned.all(inputs).outputs


def _share(outputs: Tensor | None, labels: Tensor) -> float:
    assert outputs is not None
    return parallel.agreed(agreement(outputs.cpu(), labels.cpu(), "classes"))
