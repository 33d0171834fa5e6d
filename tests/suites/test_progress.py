from __future__ import annotations

import io

import pytest

from transship.suites.runner import Case, Step
from transship.suites.runner.progress import Progress, duration


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")],
)
def test_times_read_as_people_say_them(seconds: float, text: str):
    assert duration(seconds) == text


def watch(stream: io.StringIO, *, reused: int, computed: int, seconds: float) -> str:
    clock = Clock()
    progress = Progress("toy", stream, clock=clock)
    total = reused + computed
    for place in range(total):
        clock.now += 0.0 if place < reused else seconds
        progress.show(Step(Case({}, place), place + 1, total, seconds, reused=place < reused))
    return stream.getvalue()


def test_the_time_left_counts_only_what_was_computed():
    lines = watch(io.StringIO(), reused=2, computed=4, seconds=10).splitlines()
    assert lines == [
        "toy: 3 of 6 cases (2 kept from before), 10 s, about 30 s left",
        "toy: 4 of 6 cases (2 kept from before), 20 s, about 20 s left",
        "toy: 5 of 6 cases (2 kept from before), 30 s, about 10 s left",
        "toy: 6 of 6 cases (2 kept from before), 40 s",
    ]


def test_a_log_is_not_flooded():
    lines = watch(io.StringIO(), reused=0, computed=1000, seconds=0.01).splitlines()
    assert len(lines) <= 5


def test_a_terminal_has_one_line_that_moves():
    text = watch(Terminal(), reused=0, computed=3, seconds=1)
    assert text.count("\n") == 1
    assert text.count("\r") == 3
