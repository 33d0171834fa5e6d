"""How long a transport takes: seconds per input of each model, timed on a few, times the passes it needs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transship import parallel
from transship.activations import LoadedModel

# inputs that are timed, after one that is not
_TIMED = 4
# what a pass with Moments, or with gradients, costs beside a plain one
COLLECTING, BACKWARD = 2.0, 3.0


@dataclass(frozen=True)
class Pace:
    """Seconds per input.

    Attributes:
        source: of the source.
        target: of the target.
    """

    source: float
    target: float

    @classmethod
    def of(cls, source: LoadedModel, target: LoadedModel, inputs: Sequence[Any]) -> "Pace":
        rows = [inputs[row] for row in range(min(_TIMED, len(inputs)))]
        return cls(_seconds(source, rows), _seconds(target, rows))


def _seconds(model: LoadedModel, rows: Sequence[Any]) -> float:
    with torch.no_grad():
        model.run(model.preprocess(rows[:1]))
        start = time.monotonic()
        model.run(model.preprocess(rows))
    return (time.monotonic() - start) / len(rows)


@dataclass(frozen=True)
class Budget:
    """When comparing has to end.

    Attributes:
        end: on the clock; None for whenever it is done.
        clock: seconds.
    """

    end: float | None = None
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, minutes: float | None, reserve: float = 0.0) -> "Budget":
        """Return what is left of so many minutes, `reserve` seconds of which go to what follows."""
        return cls() if minutes is None else cls(time.monotonic() + max(0.0, 60.0 * minutes - reserve))

    def allows(self, seconds: float = 0.0) -> bool:
        """Return whether work of so many seconds ends in time; all processes hear the same."""
        return self.end is None or parallel.agreed(self.clock() + seconds <= self.end)
