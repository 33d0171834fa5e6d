"""How far a run is and how long it will still take: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from transship.suites.runner.run import Step

# between two plain lines, so that a log stays readable
_QUIET_SECONDS = 5.0


class Progress:
    """Watches the steps of one run.

    The time left is the mean time of the cases computed in this run (not reused) times those that remain.
    """

    def __init__(self, name: str, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._stream, self._clock = name, stream, clock
        self._start = self._last = clock()
        self._computed = self._reused = self._width = 0
        self._moving = stream.isatty()

    def show(self, step: Step) -> None:
        """Say where the run stands after `step`."""
        now = self._clock()
        self._reused += step.reused
        self._computed += not step.reused
        last = step.done == step.total
        if not (self._moving or last or now - self._last >= _QUIET_SECONDS or self._computed == 1):
            return
        self._last = now
        left = "" if last or not self._computed else f", about {duration(self._left(step, now))} left"
        kept = f" ({self._reused} kept from before)" if self._reused else ""
        text = f"{self._name}: {step.done} of {step.total} cases{kept}, {duration(now - self._start)}{left}"
        if self._moving:
            line = f"{text} · {step.case}"[:118]
            self._stream.write("\r" + line.ljust(self._width) + ("\n" if last else ""))
            self._width = len(line)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _left(self, step: Step, now: float) -> float:
        return (now - self._start) / self._computed * (step.total - step.done)


def duration(seconds: float) -> str:
    """Return a time as people read it: `42 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
