"""Tables, texts and key figures, and their Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.report import Column, Figure, KeyFigure, KeyFigures, Section, Spread, Table, Text
from transship.report.markdown import block_text, section_text


def test_a_table_becomes_markdown():
    table = Table(
        ["method", Column("accuracy", best="max"), Column("seconds", best="min", decimals=1), "note"],
        [
            ["a|b", Spread(0.8123, 0.01), 12.25, None],
            ["c", Spread(0.9, 0.02), 3, "x\ny"],
            ["d", None, 7.0, "<b>"],
        ],
        caption="What was measured.",
    )
    assert block_text(table) == "\n".join(
        [
            "What was measured.",
            "",
            "| method | accuracy | seconds | note |",
            "| --- | ---: | ---: | --- |",
            "| a\\|b | 0.812 ± 0.010 | 12.2 | – |",
            "| c | **0.900 ± 0.020** | **3** | x y |",
            "| d | – | 7.0 | &lt;b> |",
        ]
    )


@given(st.lists(st.lists(st.text(max_size=12), min_size=2, max_size=2), max_size=4))
def test_no_cell_can_break_a_markdown_table(rows: list[list[str]]):
    lines = block_text(Table(["a", "b"], rows)).split("\n")
    assert len(lines) == 2 + len(rows)
    assert all(line.replace("\\\\", "").replace("\\|", "").count("|") == 3 for line in lines)


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 values for 2 columns"):
        Table(["a", "b"], [[1, 2], [3]])


def test_whole_numbers_of_a_column_are_grouped_alike():
    texts = [cell.text for (cell,) in Table(["n"], [[7212], [18212]]).cells()]
    assert texts == ["7,212", "18,212"]


def test_parameters_keep_their_own_digits_beside_one_another():
    rows = [["rate", 0.0002], ["factor", 40.0], ["weight", 0.05], ["steps", 160]]
    table = Table(["parameter", Column("value", code=True)], rows)
    assert [row[1].text for row in table.cells()] == ["2.00e−4", "40", "0.05", "160"]
    assert [row[1].text for row in Table(["parameter", "value"], rows).cells()][:2] == ["0.00", "40.00"]


def test_columns_are_numeric_only_when_all_their_values_are():
    table = Table(["a", "b", "c", "d"], [[1, "x", None, True], [2.5, 1, None, False]])
    assert table.numeric == [True, False, False, False]


def test_ties_are_all_best_and_a_single_value_is_not():
    assert [cell.best for (cell,) in Table([Column("a", best="max")], [[1], [2], [2]]).cells()] == [
        False,
        True,
        True,
    ]
    assert [cell.best for (cell,) in Table([Column("a", best="max")], [[1], [None]]).cells()] == [
        False,
        False,
    ]


def test_not_a_number_is_never_best():
    assert [
        cell.best for (cell,) in Table([Column("a", best="max")], [[float("nan")], [1.0], [0.5]]).cells()
    ] == [
        False,
        True,
        False,
    ]


def test_an_empty_table_is_a_table():
    assert Table(["a"], []).cells() == []
    assert block_text(Table(["a"], [])) == "| a |\n| --- |"


def test_sections_become_markdown():
    section = Section(
        "Found",
        [
            Text("One.\n\nTwo."),
            Text("Careful", tone="warning"),
            KeyFigures([KeyFigure("score", 0.5, "of 1")]),
        ],
    )
    assert section_text(section) == "## Found\n\nOne.\n\nTwo.\n\n> Careful\n\n- score: **0.5** (of 1)"


@pytest.mark.parametrize(("count", "written"), [(100, True), (101, False)])
def test_a_figure_of_many_points_says_in_markdown_how_many_and_not_each(count: int, written: bool):
    figure = Figure({}, "A cloud.", numbers=Table(["x"], [[place] for place in range(count)]))
    text = block_text(figure)
    assert "A cloud." in text
    assert ("| 99 |" in text) is written
    assert (f"{count} rows of numbers" in text) is not written
