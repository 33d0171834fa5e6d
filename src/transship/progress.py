"""How far long work is and how long it still takes: a bar on a terminal, plain lines elsewhere.

Everything that takes long has a parameter `progress: Progress = quiet` and calls it. Who started the work
decides what becomes of it: the command line passes `Bars()`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

from transship.errors import printable

# between two plain lines, so that a log stays readable
_PLAIN_SECONDS = 5.0


class Progress(Protocol):
    """Is told how far work is.

    Work of `total` steps reports once before its first step, and then as often as it likes. Its first report
    says how much there is already: 0, or what an earlier run left. Several works may follow one another.
    """

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Take note that `done` of the `total` steps of `what` are finished."""


def quiet(what: str, done: int, total: int, /) -> None:
    """Watch nothing."""


@contextlib.contextmanager
def keeping(what: str, place: Path | None) -> Iterator[None]:
    """Let a Ctrl-C in the block say that `what` is kept in `place`, if that is there by then.

    The interruption carries the sentence as a note (PEP 678), so that who prints it need not know the work.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if place is not None and place.exists():
            stop.add_note(f"{what} are kept in {place}, and the same command goes on from there")
        raise


class Bars:
    """Shows progress on standard error: a bar on a terminal, a line every few seconds elsewhere.

    The time left is the mean time of the steps taken so far times those that remain.
    """

    def __init__(
        self,
        *,
        unit: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit, self._clock = unit, clock
        self._stream = stream or sys.stderr
        self._what: str | None = None
        self._ended: tuple[str, int] | None = None
        self._first = self._done = self._total = 0
        self._start = self._last = 0.0
        self._bar: Any = None

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Show that `done` of the `total` steps of `what` are finished."""
        if done >= total and self._ended == (what, total):
            return  # the end of what has just ended
        if what != self._what or total != self._total or done < self._done:
            self._begin(what, done, total)
        self._done = done
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        else:
            self._line(what, done, total)
        if done >= total:
            self.close()
            self._ended = what, total

    def close(self) -> None:
        """Take the bar away, also of work that stops before its end."""
        if self._bar is not None:
            self._bar.close()
        self._what = self._bar = None

    def _begin(self, what: str, done: int, total: int) -> None:
        self.close()
        self._what, self._total, self._first, self._ended = what, total, done, None
        self._start = self._last = self._clock()
        if self._stream.isatty():
            # start-up: most commands need no bar
            from tqdm import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(
                desc=printable(what),
                total=total,
                initial=done,
                unit=f" {self._unit or 'steps'}",
                file=self._stream,
                leave=False,
            )

    def _line(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        ended = done >= total
        if not ended and now - self._last < _PLAIN_SECONDS:
            return
        self._last = now
        spent, worked = now - self._start, done - self._first
        text = f"{printable(what)}: {done} of {total}" + (f" {self._unit}" if self._unit else "")
        text += f" ({self._first} kept from before)" if self._first else ""
        text += f", {duration(spent)}"
        if worked > 0 and not ended:
            text += f", about {duration(spent / worked * (total - done))} left"
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
