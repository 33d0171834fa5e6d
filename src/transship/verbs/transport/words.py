"""Labels per word: texts with a label for every word, and what a model says about each of them.

A model answers for its tokens; a word's answer is that of its first token, as is usual for taggers. Words are
what stands between spaces, whatever a tokenizer cuts them into.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from transship.activations import LoadedModel
from transship.activations.layout import TokenLayout
from transship.activations.readout import Reading, Readout
from transship.errors import DataError
from transship.numerics import chunks
from transship.verbs.transport.teacher import read_tokens

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
        written = [[word.span() for word in _WORD.finditer(text)] for text in texts]
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
                states, answers, tokens = read_tokens(readout, batch)
                first = _first_tokens(_layout(readout.loaded, batch.layout(self.stack)), self.spans[part])
                places = [
                    number * tokens + place
                    for number, row in enumerate(first)
                    for place in row
                    if place is not None
                ]
                features.append(states[places].float().cpu())
                if answers is not None:
                    outputs.append(answers[places].float().cpu())
        return Reading(torch.cat(features), torch.cat(outputs) if outputs else None)


def word_labels(labels: Tensor, names: tuple[str, ...], words: Words) -> tuple[Tensor, tuple[str, ...]] | str:
    """Return a class for every word and the classes' names, or why there is none.

    A row's label is the labels of its words with spaces between: `O B-PER I-PER O`. Whole numbers stay as
    they are.
    """
    if not names:
        return "its labels are values, and the fine-tune answers for every word"
    by_word: list[str] = []
    for row, number in enumerate(labels.tolist()):
        given = names[number].split()
        if len(given) != len(words.kept[row]):
            return (
                f"the text {_short(words.texts[row])} has {len(words.kept[row])} words and "
                f"{len(given)} label{'s' if len(given) != 1 else ''}"
            )
        by_word += [label for label, had in zip(given, words.kept[row], strict=True) if had]
    if not by_word:
        return "no word of its texts has a token"
    if all(label.isdecimal() for label in by_word):
        numbers = torch.tensor([int(label) for label in by_word], dtype=torch.long)
        return numbers, tuple(map(str, range(int(numbers.max()) + 1)))
    known = sorted(set(by_word))
    places = {name: place for place, name in enumerate(known)}
    return torch.tensor([places[label] for label in by_word]), tuple(known)


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
