"""Inputs in batches: numbered, of similar length, in an order that depends on the inputs only."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

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
