"""Measures a transport on labelled rows that it never saw: checked before the long work, measured after it.

Nothing here chooses anything. Formulas are in `evaluate`.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from transship.activations.readout import Reading, Readout, Task
from transship.checkpoints.card import Input
from transship.errors import DataError, OptionError
from transship.verbs.transport.calibrate import draw_kept
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.judge import Choice, agreement
from transship.verbs.transport.labelled import Known, Labelled, labelled
from transship.verbs.transport.labels import as_outputs
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.moved import Moved
from transship.verbs.transport.result import Result
from transship.verbs.transport.scores import (
    Measured,
    Row,
    WarmStart,
    milestones,
    probe,
    reuse_head,
    warm_start,
)
from transship.verbs.transport.token_judge import read_tokens
from transship.verbs.transport.weights import shifted

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work


@dataclass(frozen=True, eq=False)
class _Read:
    """What one model says: on the test rows, the probe's rows and the original domain."""

    test: Reading | None
    train: Reading | None
    original: Reading | None


@dataclass(frozen=True, eq=False)
class Examination:
    """Test rows and rows of the original domain, ready to be measured on."""

    test: Labelled | None = None
    original: Labelled | None = None
    train: Known | None = None
    keep: Any = None
    warm_steps: int = 0

    @classmethod
    def open(
        cls, work: "Work", test: Any, original: Any, *, keep: Any = None, warm_steps: int = 0
    ) -> "Examination":
        """Read the labels and refuse what could only fail after the long work."""
        if warm_steps and test is None:
            raise OptionError(
                "fine-tuning curves are measured on test rows", where="--warm-start", fix="add --test DATA"
            )
        if test is None and original is None:
            return cls()
        _check_task(work, "--test" if test is not None else "--original", warm_steps)
        settings, draws = work.settings, work.draws
        train = Known.of(work)
        found = old = None
        if test is not None:
            used = [draws.calibration, draws.head, draws.held_out]
            used += [] if draws.validation is None else [draws.validation]
            found = labelled(work, train, test, "--test", used)
            if all(isinstance(one, str) for one in (found.known, found.tuned, found.target)):
                raise DataError(
                    f"nothing can be measured on it: {found.tuned}, and {found.known}",
                    where=found.name,
                    fix="give labels that are the fine-tune's classes, or labels in --data for a probe",
                )
        if original is not None:
            used = []
            if keep is not None:
                used = [draw_kept(keep, settings.head_inputs, settings.batch_size, settings.seed)]
            old = labelled(work, train, original, "--original", used)
            if isinstance(old.target, str):
                raise DataError(
                    f"its labels say nothing about TARGET: {old.target}",
                    where=old.name,
                    fix="give data that TARGET's own head was trained for, or leave --original out",
                )
        if found is not None and warm_steps:
            _check_warm(found, work)
        return cls(found, old, train, keep, warm_steps)

    def measured(self, work: "Work", result: Result) -> Result:
        """Return the result with the table of the fine-tuned source, the untouched and the transported
        target.
        """
        if self.test is None and self.original is None:
            return result
        heads: list[CarriedHead | None] = [None, None]
        if result.head is not None:
            plain = Carry(body="none", penalty=result.parameters.get("penalty"))
            heads = [work.head(plain, Moved(), Choice(0.0, (), "given"), self.keep), result.head]
        with work.running_tuned() as tuned:
            theirs = self._read(work, tuned, 0)
        readout = Readout(work.target.model)
        said = []
        for number, strength in enumerate((0.0, result.strength)):
            with shifted(work.target.model.model, result.moved.dense, strength):
                said.append(self._read(work, readout, number + 1))
        if work.progress is not None:
            work.progress("test", 3 * self._count(), 3 * self._count())
        with work.running_tuned() as tuned:
            rows = [self._row("source, fine-tuned", work, theirs, "tuned")]
            for name, one, head in zip(("untouched", "transported"), said, heads, strict=True):
                row = self._row(f"target, {name}", work, one, "target")
                rows.append(self._with_other_heads(row, one, theirs, tuned, head))
        table = self._table(work, rows, result.head)
        if self.warm_steps:
            table = dataclasses.replace(table, warm=self._warmed(work, result, heads))
        return dataclasses.replace(result, measured=table, inputs=[*result.inputs, *self._inputs()])

    def _count(self) -> int:
        return sum(len(one) for one in (self.test, self.original) if one is not None)

    def _read(self, work: "Work", readout: Readout, number: int) -> _Read:
        if work.progress is not None:
            work.progress("test", number * self._count(), 3 * self._count())
        size = work.settings.batch_size
        test = None if self.test is None else self.test.read(readout, size)
        train = None if self.test is None or self.train is None else self.train.read(readout, size)
        return _Read(test, train, None if self.original is None else self.original.read(readout, size))

    def _row(self, model: str, work: "Work", said: _Read, whose: str) -> Row:
        """Return a model's own head and its probe."""
        row = Row(model)
        if self.test is not None and said.test is not None and said.train is not None:
            own = _score(said.test.outputs, getattr(self.test, whose))
            probed = None
            if isinstance(self.test.known, Tensor):
                assert self.train is not None
                assert isinstance(self.train.labels, Tensor)
                classes = len(self.train.names) or None
                made = probe(said.train.features, self.train.labels, said.test.features, classes)
                probed = _score(made, self.test.known)
            row = dataclasses.replace(row, own_head=own, probe=probed)
        if self.original is not None and said.original is not None:
            original = _score(said.original.outputs, getattr(self.original, whose))
            row = dataclasses.replace(row, original=original)
        return row

    def _with_other_heads(
        self, row: Row, said: _Read, theirs: _Read, tuned: Readout, head: CarriedHead | None
    ) -> Row:
        """Add the fine-tuned source's head through the map of features, and the carried head."""
        if self.test is not None and isinstance(self.test.tuned, Tensor):
            assert said.test is not None
            assert said.train is not None
            assert theirs.train is not None
            made = reuse_head(tuned.loaded, said.train.features, theirs.train.features, said.test.features)
            row = dataclasses.replace(row, reused_head=_score(made, self.test.tuned))
            if head is not None:
                row = dataclasses.replace(row, carried_head=_carried(head, said.test, self.test.tuned))
        if head is not None and self.original is not None and said.original is not None:
            original = _carried(head, said.original, self.original.tuned)
            row = dataclasses.replace(row, original_carried=original)
        return row

    def _warmed(self, work: "Work", result: Result, carried: Sequence[CarriedHead | None]) -> WarmStart:
        """Fine-tune both targets on the calibration labels: with their carried heads where there are such,
        with the target's own where it has the classes, and otherwise with new ones.
        """
        test, draws, target = self.test, work.draws, Readout(work.target.model)
        assert test is not None
        assert draws.calibration_labels is not None
        known = draws.calibration_labels, draws.label_names
        heads: tuple[nn.Linear, nn.Linear] | None = None
        labels, answers, head = as_outputs(*known, target, "target", partly=True), test.target, "its own head"
        before, after = carried
        if before is not None and after is not None:
            labels, answers = as_outputs(*known, work.said, "fine-tune", partly=True), test.tuned
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
            steps=milestones(self.warm_steps),
            batch_size=work.settings.batch_size,
            seed=work.settings.seed,
        )

    def _table(self, work: "Work", rows: Sequence[Row], head: CarriedHead | None) -> Measured:
        test, original = self.test, self.original
        first = test or original
        assert first is not None
        labels = [one for one in (first.known, first.tuned, first.target) if isinstance(one, Tensor)]
        values = labels[0].dtype.is_floating_point
        return Measured(
            tuple(rows),
            "rank correlation" if values else "accuracy",
            None if test is None else test.name,
            0 if test is None else len(test),
            None if original is None else original.name,
            0 if original is None else len(original),
            self._probe_labels(),
            tuple(self._notes(head)),
            unit="rows" if first.words is None else "words",
        )

    def _probe_labels(self) -> int:
        if self.test is None or self.train is None or isinstance(self.test.known, str):
            return 0
        return len(self.train.labels)

    def _notes(self, head: CarriedHead | None) -> Sequence[str]:
        notes = []
        for one in (self.test, self.original):
            notes += [] if one is None else one.notes()
        if self.test is not None:
            for what, found in (
                ("the fine-tune's head was", self.test.tuned),
                ("TARGET's own head was", self.test.target),
                ("the probe was", self.test.known),
            ):
                if isinstance(found, str):
                    notes.append(f"{what} not measured: {found}")
        if head is not None:
            notes.append("what is written answers with its carried head")
            if self.original is not None and isinstance(self.original.tuned, str):
                notes.append(f"which has none of the original domain's answers: {self.original.tuned}")
        return notes

    def _inputs(self) -> list[Input]:
        given = (("test", self.test), ("original", self.original))
        return [Input(role, one.name, one.fingerprint) for role, one in given if one is not None]


def _check_task(work: "Work", option: str, warm_steps: int) -> None:
    """Refuse fine-tunes whose answers no label can be held against."""
    spans = "QuestionAnswering" in type(work.said.loaded.model).__name__
    if work.task == "language" or spans:
        answers = "with a piece of the text" if spans else "for every token of a vocabulary"
        raise OptionError(
            f"the fine-tune answers {answers}, and labels are classes or values",
            where=option,
            fix="leave it out, and measure the result with the tools of its task",
        )
    if work.task != "tokens":
        return
    if warm_steps:
        raise OptionError(
            "it is for one label per row, and the fine-tune answers for every word",
            where="--warm-start",
            fix="leave it out",
        )
    with torch.no_grad():  # a target that cannot be read token by token is known by one input
        target = work.target.model
        read_tokens(Readout(target), target.preprocess([work.draws.calibration[0]]))


def _check_warm(test: Labelled, work: "Work") -> None:
    """Refuse fine-tunes that have nothing to learn from."""
    labels = work.draws.calibration_labels
    if labels is None or isinstance(test.known, str):
        why = "no labels" if labels is None else "other labels than --test"
        raise OptionError(
            f"{work.draws.name} has {why} to fine-tune on",
            where="--warm-start",
            fix="give --data with the labels of --test",
        )
    if labels.dtype.is_floating_point:
        raise OptionError(
            "it is for classes, and the labels are values", where="--warm-start", fix="leave it out"
        )


def _new_head(target: Readout, inputs: Sequence[Any], classes: int) -> nn.Linear:
    """Return a head of zeros on the target's features."""
    width = target.all(inputs[:1]).features.shape[1]
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _score(outputs: Tensor | None, labels: Tensor | str) -> float | None:
    if outputs is None or isinstance(labels, str):
        return None
    task: Task = "values" if labels.dtype.is_floating_point else "classes"
    return agreement(outputs.cpu(), labels, task)


def _carried(head: CarriedHead, said: Reading, labels: Tensor | str) -> float | None:
    if isinstance(labels, str):
        return None
    return _score(head.map.apply(said.features.cpu().double()), labels)
