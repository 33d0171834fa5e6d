"""Labelled rows that may be measured on, with their labels as every head numbers its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transship.activations import LoadedModel
from transship.activations.readout import Reading, Readout
from transship.data import Dataset
from transship.data.use import rows_to_measure, unused_rows
from transship.errors import DataError, OptionError
from transship.report import short_name
from transship.verbs.transport.models import require_readable
from transship.verbs.transport.rows import Draws, Words, as_classes, as_dataset, as_outputs, word_labels
from transship.verbs.transport.teacher import read_tokens


@dataclass(frozen=True, eq=False)
class Known:
    """The calibration inputs, whose labels a probe is fitted on.

    Attributes:
        inputs: raw.
        labels: of the inputs, or of their words; or why there are none.
        names: of the classes.
        words: where the fine-tune answers for every token.
    """

    inputs: Sequence[Any]
    labels: Tensor | str
    names: tuple[str, ...] = ()
    words: Words | None = None

    @classmethod
    def of(cls, draws: Draws, tuned: Readout, target: LoadedModel) -> "Known":
        none = f"{draws.name} has no labels"
        if tuned.task != "tokens":
            labels = draws.calibration_labels
            return cls(draws.calibration, none if labels is None else labels, draws.label_names)
        words = _words_of(tuned, target, draws.calibration)
        if draws.calibration_labels is None:
            return cls(draws.calibration, none, words=words)
        labels_of_words = word_labels(draws.calibration_labels, draws.label_names, words)
        if isinstance(labels_of_words, str):
            return cls(draws.calibration, f"in {draws.name}, {labels_of_words}", words=words)
        return cls(draws.calibration, *labels_of_words, words)

    def read(self, readout: Readout, size: int) -> Reading:
        """Return what a model says about the inputs, or about their words."""
        return readout.all(self.inputs, size) if self.words is None else self.words.read(readout, size)

    def numbers(self, name: str, labels: Tensor, names: tuple[str, ...]) -> Tensor | str:
        """Return other labels as these are numbered, or why they are none of them; `name` is the data's."""
        if isinstance(self.labels, str):
            return self.labels
        if self.labels.dtype.is_floating_point != labels.dtype.is_floating_point:
            return f"{name} has other labels"
        return as_classes(labels, names, self.names, name)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled rows, with their labels as each head numbers its outputs.

    Attributes:
        name: of the data.
        fingerprint: of the data.
        inputs: raw.
        known: labels as the calibration data numbers its classes, for a probe; or why there are none.
        tuned: labels as the fine-tuned source's head numbers them; or why they are none of its outputs.
        target: likewise for the target's own head.
        left_out: rows that were dropped because something was chosen or fitted on them.
        words: what has a label where the fine-tune answers for every token.
    """

    name: str
    fingerprint: str
    inputs: Sequence[Any]
    known: Tensor | str
    tuned: Tensor | str
    target: Tensor | str
    left_out: int = 0
    words: Words | None = None

    def __len__(self) -> int:
        return len(self.inputs) if self.words is None else len(self.words)

    def read(self, readout: Readout, size: int) -> Reading:
        """Return what a model says about the rows, or about their words."""
        return readout.all(self.inputs, size) if self.words is None else self.words.read(readout, size)

    def notes(self) -> list[str]:
        notes = []
        if self.left_out:
            notes.append(
                f"{self.left_out} rows of {short_name(self.name)} were left out: something was fitted on them"
            )
        if self.words is not None and self.words.cut:
            notes.append(
                f"{self.words.cut} words of {short_name(self.name)} were left out: a tokenizer cuts them off"
            )
        return notes


@dataclass(frozen=True, eq=False)
class MeasureRows:
    """What a transport is measured on; nothing is chosen by it.

    Attributes:
        test: rows of the task.
        original: rows of the target's own domain.
        train: the calibration inputs, for a probe and for fine-tuning.
        warm_steps: steps of the fine-tunes that are compared; 0 for none.
    """

    test: Labelled | None
    original: Labelled | None
    train: Known
    warm_steps: int = 0

    def __len__(self) -> int:
        return sum(len(rows) for rows in (self.test, self.original) if rows is not None)


def measure_rows(
    draws: Draws,
    tuned: Readout,
    target: LoadedModel,
    test: Any,
    original: Any,
    *,
    kept: Sequence[Any] | None = None,
    warm_steps: int = 0,
) -> MeasureRows:
    """Read the labels, and refuse what could only fail after the long work.

    Args:
        draws: what is fitted and chosen on.
        tuned: what the fine-tuned source's outputs are.
        target: the target.
        test: labelled rows of the task, or None.
        original: labelled rows of the target's own domain, or None.
        kept: inputs of that domain that a head is fitted on.
        warm_steps: steps of the fine-tunes that are compared.
    """
    if warm_steps and test is None:
        raise OptionError(
            "fine-tuning curves are measured on test rows", where="--warm-start", fix="add --test DATA"
        )
    _check_task(tuned, target, draws.calibration[0], "--original" if test is None else "--test", warm_steps)
    train = Known.of(draws, tuned, target)
    rows = old = None
    if test is not None:
        used = [draws.calibration, draws.head, draws.held_out, draws.validation]
        rows = _labelled(draws, tuned, target, train, test, "--test", used)
        if all(isinstance(labels, str) for labels in (rows.known, rows.tuned, rows.target)):
            raise DataError(
                f"nothing can be measured on it: {rows.tuned}, and {rows.known}",
                where=rows.name,
                fix="give labels that are the fine-tune's classes, or labels in --data for a probe",
            )
    if original is not None:
        old = _labelled(draws, tuned, target, train, original, "--original", [kept])
        if isinstance(old.target, str):
            raise DataError(
                f"its labels say nothing about TARGET: {old.target}",
                where=old.name,
                fix="give data that TARGET's own head was trained for, or leave --original out",
            )
    if rows is not None and warm_steps:
        _check_warm(rows, draws)
    return MeasureRows(rows, old, train, warm_steps)


def _labelled(
    draws: Draws,
    tuned: Readout,
    target: LoadedModel,
    known: Known,
    data: Any,
    option: str,
    used: Sequence[Sequence[Any] | None],
) -> Labelled:
    """Return the rows that may be measured on: of the test split where there is one, none that was used."""
    dataset = _held_back(as_dataset(data), option)
    if dataset.labels is None:
        raise DataError(
            "it has no labels to measure against", where=dataset.name, fix=f"give labelled data to {option}"
        )
    fresh = unused_rows(dataset, [rows for rows in used if rows is not None])
    if not len(fresh):
        raise DataError(
            "every row of it was used to fit or to choose something",
            where=dataset.name,
            fix=f"give {option} rows that are not in --data" if option == "--test" else "give other rows",
        )
    rows = dataset.subset(fresh)
    for model in (tuned.loaded, target):
        require_readable(model, rows.inputs[0], dataset.name)
    labels, names, words = torch.as_tensor(rows.labels), dataset.label_names, None
    if tuned.task == "tokens":
        labels, names, words = _of_words(tuned, target, rows, labels)
    per_word = words is not None
    of_tuned, of_target = (
        as_outputs(labels, names, head, who, partly=True, per_word=per_word)
        for head, who in ((tuned, "fine-tune"), (Readout(target), "target"))
    )
    return Labelled(
        dataset.name,
        dataset.fingerprint(),
        rows.inputs,  # type: ignore[arg-type]
        known.numbers(draws.name, labels, names),
        of_tuned,
        of_target,
        len(dataset) - len(fresh),
        words,
    )


def _words_of(tuned: Readout, target: LoadedModel, texts: Sequence[Any]) -> Words:
    """Return the words of some inputs that both models have tokens for."""
    return Words.of(texts, (tuned.loaded, target), "" if tuned.head is None else tuned.head.stack)


def _of_words(
    tuned: Readout, target: LoadedModel, rows: Dataset, labels: Tensor
) -> tuple[Tensor, tuple[str, ...], Words]:
    if rows.kind != "text":
        raise DataError(
            f"it has {rows.kind}s, and labels per word need single texts",
            where=rows.name,
            fix="give rows of one text each, with a label for every word of it",
        )
    words = _words_of(tuned, target, list(rows.inputs))
    labels_of_words = word_labels(labels, rows.label_names, words)
    if isinstance(labels_of_words, str):
        raise DataError(
            f"{labels_of_words}, and the fine-tune answers for every word",
            where=rows.name,
            fix="give every row the labels of its words in order, with spaces between",
        )
    return *labels_of_words, words


def _held_back(dataset: Dataset, option: str) -> Dataset:
    if dataset.splits is None:
        return dataset
    rows = rows_to_measure(dataset)
    if rows is not None:
        return rows
    raise DataError(
        f"it has only {', '.join(dataset.split_sizes)} rows",
        where=dataset.name,
        fix=f"give {option} data with a test split, or without splits",
    )


def _check_task(tuned: Readout, target: LoadedModel, first: Any, option: str, warm_steps: int) -> None:
    """Refuse fine-tunes whose answers no label can be held against."""
    spans = "QuestionAnswering" in type(tuned.loaded.model).__name__
    if tuned.task == "language" or spans:
        answers = "with a piece of the text" if spans else "for every token of a vocabulary"
        raise OptionError(
            f"the fine-tune answers {answers}, and labels are classes or values",
            where=option,
            fix="leave it out, and measure the result with the tools of its task",
        )
    if tuned.task != "tokens":
        return
    if warm_steps:
        raise OptionError(
            "it is for one label per row, and the fine-tune answers for every word",
            where="--warm-start",
            fix="leave it out",
        )
    with torch.no_grad():  # a target that cannot be read token by token is known by one input
        read_tokens(Readout(target), target.preprocess([first]))


def _check_warm(test: Labelled, draws: Draws) -> None:
    """Refuse fine-tunes that have nothing to learn from."""
    labels = draws.calibration_labels
    if labels is None or isinstance(test.known, str):
        why = "no labels" if labels is None else "other labels than --test"
        raise OptionError(
            f"{draws.name} has {why} to fine-tune on",
            where="--warm-start",
            fix="give --data with the labels of --test",
        )
    if labels.dtype.is_floating_point:
        raise OptionError(
            "it is for classes, and the labels are values", where="--warm-start", fix="leave it out"
        )
