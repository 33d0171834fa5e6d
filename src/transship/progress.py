"""How far long work is and how long it still takes: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

# between two plain lines, so that a log stays readable
_QUIET_SECONDS = 5.0


class Progress:
    """Watches work of a known size.

    The time left is the mean time of the steps taken so far times those that remain.
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        unit: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total, self._unit = what, total, f" {unit}" if unit else ""
        self._stream, self._clock = stream or sys.stderr, clock
        self._start = self._last = clock()
        self._width = 0
        self._moving = self._stream.isatty()

    def __call__(self, done: int, note: str = "", *, kept: int = 0) -> None:
        """Say that `done` of the steps are finished; `kept` of them came from before and took no time."""
        now = self._clock()
        last = done >= self._total
        if not (self._moving or last or now - self._last >= _QUIET_SECONDS):
            return
        self._last = now
        worked = done - kept
        left = (now - self._start) / worked * (self._total - done) if worked > 0 else 0.0
        text = f"{self._what}: {done} of {self._total}{self._unit}"
        text += f" ({kept} kept from before)" if kept else ""
        text += f", {duration(now - self._start)}" + (
            f", about {duration(left)} left" if left and not last else ""
        )
        if self._moving:
            line = (f"{text} · {note}" if note and not last else text)[:118]
            self._stream.write("\r" + line.ljust(self._width) + ("\n" if last else ""))
            self._width = len(line)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def duration(seconds: float) -> str:
    """Return a time as people read it: `42 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
