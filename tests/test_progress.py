import io
from pathlib import Path

import pytest

from transship.progress import Bars, duration, keeping, quiet


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
    bars = Bars(stream=stream, clock=clock)
    for done in range(11):
        clock.now = done * 2.0
        bars("inputs", done, 10)
    assert stream.getvalue().splitlines() == [
        "inputs: 3 of 10, 6 s, about 14 s left",
        "inputs: 6 of 10, 12 s, about 8 s left",
        "inputs: 9 of 10, 18 s, about 2 s left",
        "inputs: 10 of 10, 20 s",
    ]


def test_a_terminal_gets_one_bar_that_goes_with_the_work():
    stream = Terminal()
    bars = Bars(unit="cases", stream=stream)
    bars("cases", 0, 2)
    bars("cases", 2, 2)
    assert "cases:   0%" in stream.getvalue()
    assert "0/2" in stream.getvalue()
    assert stream.getvalue().endswith("\r")


def test_what_was_kept_from_before_does_not_make_the_rest_look_quick():
    clock, stream = Clock(), io.StringIO()
    bars = Bars(stream=stream, clock=clock, unit="cases")
    bars("suite", 4, 10)
    clock.now = 6.0
    bars("suite", 6, 10)
    assert stream.getvalue() == "suite: 6 of 10 cases (4 kept from before), 6 s, about 12 s left\n"


def test_a_log_is_not_flooded():
    clock, stream = Clock(), io.StringIO()
    bars = Bars(stream=stream, clock=clock)
    for done in range(1001):
        clock.now += 0.01
        bars("cases", done, 1000)
    bars("cases", 1000, 1000)
    assert len(stream.getvalue().splitlines()) == 2


def test_works_follow_one_another_each_with_a_clock_of_its_own():
    clock, stream = Clock(), io.StringIO()
    bars = Bars(stream=stream, clock=clock)
    for what, seconds in (("source", 8.0), ("target", 4.0), ("target", 2.0)):
        bars(what, 0, 2)
        clock.now += seconds
        bars(what, 2, 2)
    assert stream.getvalue().splitlines() == [
        "source: 2 of 2, 8 s",
        "target: 2 of 2, 4 s",
        "target: 2 of 2, 2 s",
    ]


def test_a_name_from_outside_cannot_steer_the_terminal():
    stream = io.StringIO()
    Bars(stream=stream)("\x1b]0;title\x07", 1, 1)
    assert "\x1b" not in stream.getvalue()
    assert "\\x1b]0;title\\x07" in stream.getvalue()


def test_nobody_needs_to_watch():
    assert quiet("anything", 1, 2) is None


def test_ctrl_c_carries_what_is_kept_and_no_more(tmp_path: Path):
    for place, notes in (
        (tmp_path, [f"steps are kept in {tmp_path}, and the same command goes on from there"]),
        (tmp_path / "nowhere", []),
        (None, []),
    ):
        with pytest.raises(KeyboardInterrupt) as stop, keeping("steps", place):
            raise KeyboardInterrupt
        assert getattr(stop.value, "__notes__", []) == notes
    with pytest.raises(ValueError, match="mine") as error, keeping("steps", tmp_path):
        raise ValueError("mine")
    assert not hasattr(error.value, "__notes__")
