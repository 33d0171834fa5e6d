"""Which rows of the user's data are used for what (test rows never), and whether their labels are the
fine-tune's own answers.

Where a fine-tune answers for every token, labels are per word: what stands between spaces, whatever a
tokenizer cuts it into. A word's answer is that of its first token, as is usual for taggers.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.activations import LoadedModel
from transship.activations.layout import TokenLayout
from transship.activations.models import is_text_pair
from transship.activations.readout import Reading, Readout
from transship.data import Dataset, load, wrap
from transship.data.use import (
    distinct_rows,
    match_labels,
    rows_to_choose,
    rows_to_fit,
    unnamed,
    unused_rows,
)
from transship.errors import DataError, OptionError
from transship.numerics import chunks, derive_seed
from transship.verbs.transport.teacher import read_tokens

Span = tuple[int, int]
_WORD = re.compile(r"\S+")
_AT_ONCE = 64
MOST_VALIDATION = 400
# fewer tell methods apart no better than chance
LEAST_HELD_OUT = 16


@dataclass(frozen=True, eq=False)
class Draws:
    """Rows by purpose; no row is both calibration and validation.

    Attributes:
        calibration: raw inputs that maps are fitted on.
        head: raw inputs that a head is fitted on; the calibration inputs are among them.
        held_out: raw inputs for comparing methods without labels.
        validation: raw inputs with labels, or None.
        labels: of the validation inputs.
        calibration_labels: of the calibration inputs, where the data has labels.
        name: of the data.
        fingerprint: of the data.
        held_out_fitted: whether the held-out inputs are calibration inputs after all, because too few rows
            were left over.
    """

    calibration: Sequence[Any]
    head: Sequence[Any]
    held_out: Sequence[Any]
    validation: Sequence[Any] | None
    labels: Tensor | None
    calibration_labels: Tensor | None
    label_names: tuple[str, ...]
    name: str
    fingerprint: str
    held_out_fitted: bool = False


def as_dataset(data: Any) -> Dataset:
    """Return a Dataset from a reference, a Dataset, or inputs in memory."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        return load(str(data))
    if isinstance(data, np.ndarray | Tensor):
        return wrap(np.asarray(data), kind="array", name="arrays in memory")
    if data is None:
        raise DataError("there is none", where="data", fix="give inputs of the task")
    rows = list(data)
    if rows and isinstance(rows[0], str):
        return wrap(rows, kind="text", name="texts in memory")
    if rows and is_text_pair(rows[0]):
        return wrap(rows, kind="pair", name="pairs of texts in memory")
    if rows and isinstance(rows[0], np.ndarray | Tensor):
        shapes = {tuple(np.shape(row)) for row in rows}
        if len(shapes) > 1:
            named = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise DataError(
                f"its arrays have shapes {named}", where="arrays in memory", fix="give arrays of one shape"
            )
        return wrap(np.stack([np.asarray(row) for row in rows]), kind="array", name="arrays in memory")
    return wrap(rows, kind="image", name="images in memory")


def draw(
    data: Any,
    *,
    batches: int = 10,
    batch_size: int = 32,
    shots: int | None = None,
    head_inputs: int = 1000,
    seed: int = 0,
) -> Draws:
    """Draw rows of the training part: B batches, or K labelled examples per class."""
    dataset = as_dataset(data)
    if batches < 1 or batch_size < 1:
        raise OptionError(
            f"{batches} batches of {batch_size}", where="--batches", fix="take at least one of each"
        )
    train = rows_to_fit(dataset)
    count = batches * batch_size
    rows = _order(len(train), seed)[:count] if shots is None else _per_class(train, shots, seed)
    calibration = train.subset(rows)
    needed = MOST_VALIDATION + 3 * max(64, count) + head_inputs
    left = _left_over(train, rows, needed, seed)
    validation = rows_to_choose(dataset)
    classes = bool(dataset.label_names) or (dataset.labels is not None)
    if validation is None and classes and len(left) >= 20:
        size = min(MOST_VALIDATION, len(left) // 2)
        validation, left = train.subset(np.sort(left[:size])), left[size:]
    elif validation is not None:
        used = train.subset(np.concatenate([rows, left]).astype(np.int64))
        validation = _unused(validation, used, seed)
    size = min(max(64, count), len(left) // 3)
    held, left = left[:size], left[size:]
    fitted = len(held) < LEAST_HELD_OUT
    if fitted:
        held = rows[: max(1, len(rows) // 4)]
    more = left[: max(0, head_inputs - len(rows))]
    if validation is not None and validation.labels is None:
        validation = None
    return Draws(
        _listed(calibration),
        _listed(train.subset(np.concatenate([rows, more]).astype(np.int64))),
        _listed(train.subset(held)),
        None if validation is None else _listed(validation),
        None if validation is None else torch.as_tensor(validation.labels),
        None if calibration.labels is None else torch.as_tensor(calibration.labels),
        dataset.label_names,
        dataset.name,
        dataset.fingerprint(),
        fitted,
    )


def _left_over(train: Dataset, rows: Any, needed: int, seed: int) -> Any:
    """Return so many of the other rows, in an order drawn by seed. Equal rows play one part: what is fitted
    would tell the answer of its copy.
    """
    left = np.setdiff1d(np.arange(len(train)), rows)
    left = left[np.random.default_rng(derive_seed(seed, "rest")).permutation(len(left))][:needed]
    return left[distinct_rows(train.subset(left), [_listed(train.subset(rows))])] if len(left) else left


def draw_kept(keep: Any, head_inputs: int, batch_size: int, seed: int) -> Sequence[Any]:
    """Return the raw inputs of the target's own domain on which a carried head keeps its answers."""
    batches = max(1, head_inputs // batch_size)
    return draw(keep, batches=batches, batch_size=batch_size, seed=seed).calibration


def _per_class(train: Dataset, shots: int, seed: int) -> Any:
    # by place: ids of the data need not tell rows apart
    places = dataclasses.replace(train, ids=np.arange(len(train)), has_ids=False)
    return places.per_class(shots, seed=seed, allow_fewer=True).ids


def _unused(validation: Dataset, used: Dataset, seed: int) -> Dataset | None:
    """Return at most so many rows to choose by, none of which is used otherwise."""
    if len(validation) > MOST_VALIDATION:
        validation = validation.take(MOST_VALIDATION, seed=seed)
    fresh = unused_rows(validation, [_listed(used)])
    return validation.subset(fresh) if len(fresh) else None


def _order(count: int, seed: int) -> Any:
    return np.random.default_rng(derive_seed(seed, "calibration")).permutation(count)


def _listed(dataset: Dataset) -> Sequence[Any]:
    rows: Sequence[Any] = dataset.inputs  # type: ignore[assignment]
    return rows


def validation_labels(draws: Draws, tuned: Readout) -> Tensor | str | None:
    """Return the validation labels as the fine-tuned source numbers its outputs, or why they cannot be used;
    None where the data has none.
    """
    if draws.validation is None or draws.labels is None:
        return None
    return as_outputs(draws.labels, draws.label_names, tuned, "fine-tune")


def as_outputs(
    labels: Tensor,
    names: tuple[str, ...],
    head: Readout,
    who: str,
    *,
    partly: bool = False,
    per_word: bool = False,
) -> Tensor | str:
    """Return labels as a model numbers its outputs, or why they are none of them.

    Classes meet by name where both sides have names, whatever their order, and by number otherwise; with
    `partly`, numbers may stand for the first of the model's classes. Labels `per_word` are for heads that
    answer for every token.
    """
    if head.task == "values" and not per_word:
        return (
            labels if labels.dtype.is_floating_point else f"the {who} gives values, and the data has classes"
        )
    if head.task != ("tokens" if per_word else "classes"):
        unit = "token" if head.task in ("tokens", "language") else "text"
        return f"the {who} has no head" if head.task == "features" else f"the {who} answers per {unit}"
    if labels.dtype.is_floating_point:
        return f"the {who} tells classes apart, and the data has values"
    places = match_labels(names, head.label_names, f"the {who}", width=head.width, partly=partly)
    return places if isinstance(places, str) else torch.as_tensor(places)[labels]


def as_classes(labels: Tensor, names: tuple[str, ...], others: tuple[str, ...], who: str) -> Tensor | str:
    """Return labels as other data, `who`, numbers its classes, or why it has none of them."""
    if not names:
        return labels
    if unnamed(names) != unnamed(others):
        return f"{who} has no class '{names[0]}'"
    places = match_labels(names, others, who, partly=True)
    return places if isinstance(places, str) else torch.as_tensor(places)[labels]


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
