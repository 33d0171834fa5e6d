"""Labelled rows that may be measured on, with their labels as every head numbers its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transship.activations.readout import Reading, Readout
from transship.data import Dataset
from transship.data.use import rows_to_measure, unused_rows
from transship.errors import DataError
from transship.verbs.transport.calibrate import as_dataset
from transship.verbs.transport.labels import as_classes, as_outputs
from transship.verbs.transport.models import require_readable

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work
import re
from collections.abc import Iterator

import numpy as np

from transship.activations import LoadedModel
from transship.activations.layout import TokenLayout
from transship.numerics import chunks
from transship.verbs.transport.token_judge import read_tokens

Span = tuple[int, int]
_WORD = re.compile(r"\S+")
_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Words:
    """Texts and those of their words that every model has a token for.

    Attributes:
        texts: raw.
        spans: per text, the first and last character (exclusive) of its words.
        stack: the stack whose tokens are read.
        kept: per text and word as written, whether it is among them.
    """

    texts: Sequence[str]
    spans: tuple[tuple[Span, ...], ...]
    stack: str
    kept: tuple[tuple[bool, ...], ...]

    @classmethod
    def of(cls, texts: Sequence[str], models: Sequence[LoadedModel], stack: str) -> "Words":
        """Return the words of texts; what a tokenizer cuts off is left out."""
        texts = [texts[row] for row in range(len(texts))]
        written = [[found.span() for found in _WORD.finditer(text)] for text in texts]
        kept = [[True] * len(spans) for spans in written]
        for model in models:
            for row, places in enumerate(_places(model, texts, written, stack)):
                kept[row] = [had and place is not None for had, place in zip(kept[row], places, strict=True)]
        chosen = (
            tuple(span for span, had in zip(*pair, strict=True) if had)
            for pair in zip(written, kept, strict=True)
        )
        return cls(texts, tuple(chosen), stack, tuple(map(tuple, kept)))

    def __len__(self) -> int:
        """Return the number of words."""
        return sum(map(len, self.spans))

    @property
    def cut(self) -> int:
        """How many words were left out."""
        return sum(map(len, self.kept)) - len(self)

    def read(self, readout: Readout, batch_size: int) -> Reading:
        """Return a model's states and outputs at every word: rows are words, in their order."""
        features: list[Tensor] = []
        outputs: list[Tensor] = []
        with torch.no_grad():
            for part in chunks(len(self.texts), batch_size):
                batch = readout.loaded.preprocess(list(self.texts[part.start : part.stop]))
                states, made, tokens = read_tokens(readout, batch)
                found = _first_tokens(_layout(readout.loaded, batch.layout(self.stack)), self.spans[part])
                places = [
                    number * tokens + place
                    for number, row in enumerate(found)
                    for place in row
                    if place is not None
                ]
                features.append(states[places].float().cpu())
                if made is not None:
                    outputs.append(made[places].float().cpu())
        return Reading(torch.cat(features), torch.cat(outputs) if outputs else None)


def word_labels(labels: Tensor, names: tuple[str, ...], words: Words) -> tuple[Tensor, tuple[str, ...]] | str:
    """Return a class for every word and the classes' names, or why there is none.

    A row's label is the labels of its words with spaces between: `O B-PER I-PER O`. Whole numbers stay as
    they are.
    """
    if not names:
        return "its labels are values, and the fine-tune answers for every word"
    found: list[str] = []
    for row, label in enumerate(labels.tolist()):
        given = names[label].split()
        if len(given) != len(words.kept[row]):
            return (
                f"the text {_short(words.texts[row])} has {len(words.kept[row])} words and "
                f"{len(given)} label{'s' if len(given) != 1 else ''}"
            )
        found += [one for one, had in zip(given, words.kept[row], strict=True) if had]
    if not found:
        return "no word of its texts has a token"
    if all(one.isdecimal() for one in found):
        numbers = torch.tensor([int(one) for one in found], dtype=torch.long)
        return numbers, tuple(map(str, range(int(numbers.max()) + 1)))
    known = sorted(set(found))
    places = {name: place for place, name in enumerate(known)}
    return torch.tensor([places[one] for one in found]), tuple(known)


def _places(
    model: LoadedModel, texts: Sequence[str], spans: Sequence[Sequence[Span]], stack: str
) -> Iterator[list[int | None]]:
    """Yield for every text the place of each word's first token; None where it has none."""
    for part in chunks(len(texts), _AT_ONCE):
        batch = model.preprocess(list(texts[part.start : part.stop]))
        yield from _first_tokens(_layout(model, batch.layout(stack)), spans[part])


def _first_tokens(layout: TokenLayout, spans: Sequence[Sequence[Span]]) -> Iterator[list[int | None]]:
    assert layout.offsets is not None
    assert layout.mask is not None
    special = np.zeros_like(layout.mask) if layout.special is None else layout.special
    for row, own in enumerate(spans):
        starts, ends = layout.offsets[row, :, 0], layout.offsets[row, :, 1]
        real = layout.mask[row] & ~special[row] & (ends > starts)
        yield [
            int(hits[0]) if len(hits := np.flatnonzero(real & (starts < last) & (ends > first))) else None
            for first, last in own
        ]


def _layout(model: LoadedModel, layout: TokenLayout) -> TokenLayout:
    if layout.offsets is None or layout.mask is None:
        raise DataError(
            "its tokenizer does not say where in a text its tokens stand, so words have no token",
            where=model.name,
            fix="give a model with a fast tokenizer (tokenizer.json), or leave --test and --original out",
        )
    return layout


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


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
    def of(cls, work: "Work") -> "Known":
        """Return the calibration inputs of a transport."""
        draws = work.draws
        none = f"{draws.name} has no labels"
        if work.task != "tokens":
            labels = draws.calibration_labels
            return cls(draws.calibration, none if labels is None else labels, draws.label_names)
        words = words_of(work, draws.calibration)
        if draws.calibration_labels is None:
            return cls(draws.calibration, none, words=words)
        found = word_labels(draws.calibration_labels, draws.label_names, words)
        if isinstance(found, str):
            return cls(draws.calibration, f"in {draws.name}, {found}", words=words)
        return cls(draws.calibration, *found, words)

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
        """Return how many labels there are."""
        return len(self.inputs) if self.words is None else len(self.words)

    def read(self, readout: Readout, size: int) -> Reading:
        """Return what a model says about the rows, or about their words."""
        return readout.all(self.inputs, size) if self.words is None else self.words.read(readout, size)

    def notes(self) -> list[str]:
        """Return what was left out."""
        made = []
        if self.left_out:
            made.append(f"{self.left_out} rows of {self.name} were left out: something was fitted on them")
        if self.words is not None and self.words.cut:
            made.append(f"{self.words.cut} words of {self.name} were left out: a tokenizer cuts them off")
        return made


def labelled(work: "Work", known: Known, data: Any, option: str, used: Sequence[Sequence[Any]]) -> Labelled:
    """Return the rows that may be measured on: of the test split where there is one, none that was used."""
    dataset = _held_back(as_dataset(data), option)
    if dataset.labels is None:
        raise DataError(
            "it has no labels to measure against", where=dataset.name, fix=f"give labelled data to {option}"
        )
    fresh = unused_rows(dataset, used)
    if not len(fresh):
        raise DataError(
            "every row of it was used to fit or to choose something",
            where=dataset.name,
            fix=f"give {option} rows that are not in --data" if option == "--test" else "give other rows",
        )
    rows = dataset.subset(fresh)
    for model in (work.said.loaded, work.target.model):
        require_readable(model, rows.inputs[0], dataset.name)
    labels, names, words = torch.as_tensor(rows.labels), dataset.label_names, None
    if work.task == "tokens":
        labels, names, words = _of_words(work, rows, labels)
    heads = (work.said, "fine-tune"), (Readout(work.target.model), "target")
    per_word = words is not None
    tuned, target = (
        as_outputs(labels, names, head, who, partly=True, per_word=per_word) for head, who in heads
    )
    return Labelled(
        dataset.name,
        dataset.fingerprint(),
        rows.inputs,  # type: ignore[arg-type]
        known.numbers(work.draws.name, labels, names),
        tuned,
        target,
        len(dataset) - len(fresh),
        words,
    )


def words_of(work: "Work", texts: Sequence[Any]) -> Words:
    """Return the words of some inputs that both models have tokens for."""
    head = work.said.head
    models = work.said.loaded, work.target.model
    return Words.of(texts, models, "" if head is None else head.stack)


def _of_words(work: "Work", rows: Dataset, labels: Tensor) -> tuple[Tensor, tuple[str, ...], Words]:
    if rows.kind != "text":
        raise DataError(
            f"it has {rows.kind}s, and labels per word need single texts",
            where=rows.name,
            fix="give rows of one text each, with a label for every word of it",
        )
    words = words_of(work, list(rows.inputs))
    found = word_labels(labels, rows.label_names, words)
    if isinstance(found, str):
        raise DataError(
            f"{found}, and the fine-tune answers for every word",
            where=rows.name,
            fix="give every row the labels of its words in order, with spaces between",
        )
    return *found, words


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
