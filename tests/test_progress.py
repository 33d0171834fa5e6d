import io

import pytest

from transship.progress import Progress, duration


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")],
)
def test_times_are_printed_as_people_read_them(seconds: float, text: str):
    assert duration(seconds) == text


def test_a_log_gets_few_lines_and_the_time_left():
    clock, stream = Clock(), io.StringIO()
    progress = Progress("inputs", 10, stream=stream, clock=clock)
    for done in range(1, 11):
        clock.now = done * 2.0
        progress(done)
    assert stream.getvalue().splitlines() == [
        "inputs: 3 of 10, 6 s, about 14 s left",
        "inputs: 6 of 10, 12 s, about 8 s left",
        "inputs: 9 of 10, 18 s, about 2 s left",
        "inputs: 10 of 10, 20 s",
    ]


def test_a_terminal_gets_one_moving_line_that_ends_with_the_work():
    clock, stream = Clock(), Terminal()
    progress = Progress("cases", 2, unit="cases", stream=stream, clock=clock)
    clock.now = 4.0
    progress(1, "the first")
    progress(2)
    first, second = stream.getvalue().split("\r")[1:]
    assert first.rstrip() == "cases: 1 of 2 cases, 4 s, about 4 s left · the first"
    assert second.rstrip(" ").endswith("\n")
    assert len(second.rstrip("\n")) == len(first)


def test_what_was_kept_from_before_does_not_make_the_rest_look_quick():
    clock, stream = Clock(), io.StringIO()
    progress = Progress("cases", 10, stream=stream, clock=clock)
    clock.now = 6.0
    progress(6, kept=4)
    assert stream.getvalue() == "cases: 6 of 10 (4 kept from before), 6 s, about 12 s left\n"


def test_a_log_is_not_flooded():
    clock, stream = Clock(), io.StringIO()
    progress = Progress("cases", 1000, stream=stream, clock=clock)
    for done in range(1, 1001):
        clock.now += 0.01
        progress(done)
    assert len(stream.getvalue().splitlines()) == 2
