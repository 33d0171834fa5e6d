"""Inputs in batches, and the one loop over them for all statistics.

Batches are of similar length, in an order that depends on the inputs only. Processes share the loop, a killed
run goes on, and sums are over all. Batches are dealt out in units of a few. The rows of a unit are multiplied
together, whoever takes it, so that sums of one process and of several differ by the order of float64
additions alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from transship import parallel
from transship.activations.loading import quiet
from transship.activations.state import SavedState, Sums
from transship.geometry import Moments
from transship.geometry.moments import COMPARED_ROWS

Numbered = list[tuple[int, Any]]
# Inputs that are read ahead and sorted by length, so that batches have little padding.
WINDOW = 4096


@dataclass(eq=False)
class Batches:
    """Inputs with their numbers, in batches of similar length; the order depends on the inputs only.

    Attributes:
        inputs: any iterable; it is read once, a window at a time.
        size: inputs per batch.
        length: a measure of an input's work.
        first: the number of the first input.
    """

    inputs: Iterable[Any]
    size: int
    length: Callable[[Any], int]
    first: int = 0
    window: int = field(default=WINDOW)

    def __len__(self) -> int:
        """Return the number of batches, of inputs whose number is known."""
        assert isinstance(self.inputs, Sized)
        whole, rest = divmod(len(self.inputs), self.window)
        return whole * -(-self.window // self.size) + -(-rest // self.size)

    def __iter__(self) -> Iterator[Sequence[tuple[int, Any]]]:
        if self._unsorted():
            assert isinstance(self.inputs, Sized)
            for start in range(0, len(self.inputs), self.window):
                window = range(start, min(start + self.window, len(self.inputs)))
                for place in range(0, len(window), self.size):
                    yield _Unread(self.inputs, window[place : place + self.size], self.first)
            return
        stream = enumerate(self.inputs, self.first)
        while items := list(islice(stream, self.window)):
            # longest first: a batch that does not fit in memory fails at once
            items.sort(key=lambda item: (-self.length(item[1]), item[0]))
            for start in range(0, len(items), self.size):
                yield items[start : start + self.size]

    def _unsorted(self) -> bool:
        """Whether inputs can be indexed and are no texts: nothing to sort by, so no need to read them all."""
        indexed = hasattr(self.inputs, "__getitem__") and isinstance(self.inputs, Sized) and len(self.inputs)
        return bool(indexed) and not isinstance(self.inputs[0], str | tuple | list)  # type: ignore[index]


class _Unread(Sequence[tuple[int, Any]]):
    """A batch whose inputs are read when they are asked for: only who takes it decodes its images."""

    def __init__(self, inputs: Any, places: range, first: int) -> None:
        self.inputs, self.places, self.first = inputs, places, first

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        number = self.places[place]
        return self.first + number, self.inputs[number]


# texts that are tried: characters say roughly which ones have the most tokens
TRIED = 32


def longest(folder: str, inputs: Sequence[Any]) -> int | None:
    """Return the tokens of the longest text (or pair) for the model in a folder; None for other inputs."""
    import transformers

    if not len(inputs) or not isinstance(inputs[0], str | tuple):
        return None
    texts = [text if isinstance(text, str) else " ".join(map(str, text)) for text in inputs]
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError):
        return None
    tried = sorted(texts, key=len)[-TRIED:]
    return max(len(ids) for ids in tokenizer(tried)["input_ids"]) + 2


# Products of fewer rows cost more to add up than to make; more would leave processes without work.
UNIT_ROWS = 512
# Of known inputs there are at least so many units, so that processes have equal shares.
LEAST_UNITS = 4


def unit_size(inputs: Any, batch_size: int, tokens_per_input: int | None) -> int:
    """Return the batches of a unit, which depend on inputs and options but not on the processes."""
    if tokens_per_input is None:
        return 1
    wanted = UNIT_ROWS // max(1, batch_size * tokens_per_input)
    if isinstance(inputs, Sized):
        wanted = min(wanted, -(-len(inputs) // batch_size) // LEAST_UNITS)
    return max(1, wanted)


def run_shared(
    batches: Iterable[Sequence[tuple[int, Any]]],
    step: Callable[[Numbered], Any],
    sums: Sums,
    *,
    unit: int = 1,
    state: SavedState | None = None,
    full: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Run `step` on every batch in one of the processes, add the sums up, and return the number of inputs.

    Args:
        batches: the same in every process.
        step: adds a batch to `sums`, which in the end are those of all processes, in every process.
        sums: what is added up.
        unit: batches that are dealt out, and whose rows are multiplied, together.
        state: where sums are saved; units that it covers are not run again.
        full: asked before every batch whether it is enough; then every process does all of the work, as only
            the whole knows its end.
        progress: called with the number of inputs that were passed, after each batch of this process.
    """
    stream = iter(batches)
    seen, units, turn, reported = 0, 0, 0, -1
    while unit_of := list(islice(stream, unit)):
        number, units = units, units + 1
        known = state is not None and state.covers(number, unit_of)
        turn += not known
        if known or (full is None and not parallel.mine(turn - 1)):
            seen += sum(map(len, unit_of))
            continue
        read = [list(batch) for batch in unit_of]
        for batch in read:
            if full is not None and full():
                sums.flush()
                return seen
            step(batch)
            seen += len(batch)
            if progress is not None:
                progress(reported := seen)
        sums.flush()
        if state is not None:
            state.add(number, read)
    if state is not None:
        state.finish(units)
    if full is None:
        sum_moments(sums.moments)
    if progress is not None and 0 <= reported < seen:
        progress(seen)
    return seen


def summed(moments: Moments | None) -> Moments:
    """Return the sum over processes; None where this one had no rows."""
    sums = {} if moments is None else {"": moments}
    sum_moments(sums)
    return sums[""]


def sum_moments(moments: dict[str, Moments]) -> None:
    """Replace Moments by their sums over processes; a process that lacks a name counts as zero."""
    if parallel.size() == 1:
        return
    views = parallel.gather(
        {
            name: (total.width_a, total.width_b, total.parts, str(total.sum_a.device))
            for name, total in moments.items()
        }
    )
    known = {name: about for view in views for name, about in view.items()}
    for name, (width_a, width_b, parts, device) in known.items():
        if name not in moments:
            where = parallel.device(device.partition(":")[0])
            moments[name] = Moments.zeros(width_a, width_b, parts=parts, name=name, device=where)
    ordered = [moments[name] for name in known]
    numbers = torch.tensor([[total.count, float(not total.exact)] for total in ordered], dtype=torch.float64)
    parallel.add_up([numbers, *(tensor for total in ordered for tensor in total.tensors())])
    for total, (count, inexact) in zip(ordered, numbers.tolist(), strict=True):
        total.count, total.exact = count, not inexact
    seen = parallel.gather([total.marks for total in ordered])
    for total, marks in zip(ordered, zip(*seen, strict=True), strict=True):
        present = [part for part in marks if part is not None]
        total.marks = torch.cat(present)[:COMPARED_ROWS] if present else None
