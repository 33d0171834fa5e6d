"""What a page says on a terminal and in JSON."""

from __future__ import annotations

import json as stdlib_json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.report import (
    Column,
    Facts,
    Figure,
    KeyFigure,
    KeyFigures,
    Page,
    Section,
    Spread,
    Table,
    Text,
    html,
    json,
    markdown,
    terminal,
)

ROWS = [["carry", 0.912, 3], ["maß 漢字", 0.5, 12]]
TABLE = Table(
    ["method", Column("accuracy", best="max"), Column("time", unit="s")], ROWS, "Tried.", key="tried"
)
PAGE = Page(
    "Moved",
    "The **fine-tune** was moved.",
    [
        Section("Result", [KeyFigures([KeyFigure("accuracy", 0.912, "of 1", key="test")]), TABLE]),
        Section(
            "Careful", [Text("Few rows.", tone="warning"), Text("more", folded="More"), Figure({}, "Curve")]
        ),
        Section("All tensors", [Table(["tensor"], [["a"]], key="tensors")], detail=True),
        Section("", [Facts({"kind": "map", "widths": [3, 4]}), Facts({"hash": "9f3c17"}, shown=False)]),
    ],
)


def plain(text: str) -> str:
    return text.replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_a_terminal_shows_what_a_reader_should_leave_with():
    assert plain(terminal.render(PAGE)).splitlines() == [
        *("Moved", "The fine-tune was moved.", "", "Result", "accuracy  0.912  of 1", "Tried."),
        *("method    accuracy  time (s)", "carry        0.912         3", "maß 漢字     0.500        12"),
        *("", "Careful", "warning: Few rows.", "kind: map", "widths: 3, 4"),
    ]


def test_the_json_document_has_facts_and_what_has_a_key():
    assert stdlib_json.loads(json.render(PAGE)) == {
        "test": 0.912,
        "tried": [
            {"method": "carry", "accuracy": 0.912, "time": 3},
            {"method": "maß 漢字", "accuracy": 0.5, "time": 12},
        ],
        "tensors": [{"tensor": "a"}],
        "kind": "map",
        "widths": [3, 4],
        "hash": "9f3c17",
    }


def test_facts_for_programs_are_not_shown_to_people():
    for text in (terminal.render(PAGE), markdown.render(PAGE), html.render(PAGE)):
        assert "9f3c17" not in text
        assert "map" in text


def test_two_blocks_of_one_key_are_a_mistake():
    page = Page("x", sections=[Section("y", [Facts({"a": 1}), Text("b", key="a")])])
    with pytest.raises(ValueError, match="the key 'a'"):
        json.render(page)


def test_json_carries_arrays_paths_and_what_is_not_finite():
    value = {"a": np.arange(2), "b": np.float32(0.5), "c": float("nan"), "d": Path("x"), 3: Spread(1.0, 0.5)}
    assert stdlib_json.loads(json.dumps(value)) == {
        "a": [0, 1],
        "b": 0.5,
        "c": None,
        "d": "x",
        "3": {"mean": 1.0, "spread": 0.5},
    }


def test_a_long_table_ends_with_how_many_rows_are_left_out():
    page = Page("", sections=[Section("", [Table(["n"], [[row] for row in range(100)])])])
    lines = plain(terminal.render(page)).splitlines()
    assert lines[-1] == "… and 60 more rows, listed in --json and --report"
    assert len(lines) == 42


@given(st.text(max_size=30))
def test_no_text_from_outside_can_steer_the_terminal(word: str):
    word = f"x{word}\x1b]0;title\x07"
    blocks = [
        Text(word),
        KeyFigures([KeyFigure(word, word, word)]),
        Table([word], [[word]], word),
        Facts({word: word}),
    ]
    text = plain(terminal.render(Page(word, word, [Section(word, blocks)])))
    assert not set(text) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}
