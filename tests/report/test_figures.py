"""Figures from numbers: every axis titled, every name kept, wrong shapes refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from transship.report import Figure, figures
from transship.report.figures import _five
from transship.report.values import script_json

SQUARE = np.array([[1.0, -0.5], [-0.5, 1.0]])
BUILT = {
    "heat_map": figures.heat_map(
        SQUARE, rows=["a", "b"], columns=["c", "d"], row_title="r", column_title="c", value_title="v"
    ),
    "lines": figures.lines(
        [1, 10],
        {"one": [1, 2], "two": [2, 3]},
        bands={"one": ([0, 1], [2, 3])},
        x_title="x",
        y_title="y",
        log_x=True,
    ),
    "bars": figures.bars(["a", "b"], {"s": [1, 2]}, label_title="l", value_title="v"),
    "lying": figures.bars(["a", "b"], {"s": [1, 2]}, label_title="l", value_title="v", horizontal=True),
    "scatter": figures.scatter({"g": ([1, 2], [3, 4])}, x_title="x", y_title="y"),
    "box": figures.boxes({"g": [1, 2, 3]}, group_title="g", value_title="v"),
}


@pytest.mark.parametrize("name", BUILT)
def test_every_figure_is_titled_described_and_has_its_numbers(name: str):
    figure = BUILT[name]
    assert isinstance(figure, Figure)
    assert figure.alt
    assert figure.numbers is not None
    assert figure.numbers.rows
    for axis in ("xaxis", "yaxis"):
        assert figure.spec["layout"][axis]["title"]["text"]
    json.loads(script_json(figure.spec))


@pytest.mark.parametrize("name", BUILT)
def test_every_colour_is_a_token_that_follows_the_theme(name: str):
    entries: list[str] = []

    def walk(value: object, key: str = "") -> None:
        if isinstance(value, dict):
            for inner, part in value.items():
                walk(part, inner)
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part, key)
        elif isinstance(value, str) and "color" in key:
            entries.append(value)

    walk(dict(BUILT[name].spec))
    assert entries
    assert all(colour.startswith("@") for colour in entries)


def test_a_heat_map_keeps_its_values_and_fixes_its_ends():
    trace = BUILT["heat_map"].spec["data"][0]
    assert trace["z"] == SQUARE.tolist()
    assert (trace["zmin"], trace["zmax"]) == (-0.5, 1.0)
    assert trace["text"] == [["1.00", "−0.50"], ["−0.50", "1.00"]]


def test_large_heat_maps_write_no_numbers_and_fewer_ticks():
    names = [f"layer {row}" for row in range(60)]
    figure = figures.heat_map(
        np.zeros((60, 60)), rows=names, columns=names, row_title="r", column_title="c", value_title="v"
    )
    assert "text" not in figure.spec["data"][0]
    assert len(figure.spec["layout"]["xaxis"]["tickvals"]) <= 40


def test_long_names_are_shortened_in_the_middle_and_kept_for_the_pointer():
    name = "encoder.layer.11.attention.output.dense"
    figure = figures.bars([name], {"s": [1]}, label_title="l", value_title="v")
    (shown,) = figure.spec["layout"]["yaxis"]["ticktext"]
    assert len(shown) <= 26
    assert shown.startswith("encoder.")
    assert shown.endswith("dense")
    assert figure.spec["data"][0]["customdata"] == [name]


def test_missing_values_leave_gaps():
    figure = figures.heat_map(
        [[None, 1.0]], rows=["a"], columns=["b", "c"], row_title="r", column_title="c", value_title="v"
    )
    assert figure.spec["data"][0]["text"] == [["", "1.00"]]


@pytest.mark.parametrize(
    "build",
    [
        lambda: figures.heat_map(
            SQUARE, rows=["a"], columns=["c", "d"], row_title="r", column_title="c", value_title="v"
        ),
        lambda: figures.lines([1, 2], {"s": [1]}, x_title="x", y_title="y"),
        lambda: figures.bars(["a"], {"s": [1, 2]}, label_title="l", value_title="v"),
        lambda: figures.scatter({"g": ([1], [1, 2])}, x_title="x", y_title="y"),
    ],
)
def test_numbers_that_do_not_fit_their_names_are_refused(build: object):
    with pytest.raises(ValueError, match=r"values"):
        build()  # type: ignore[operator]


def test_the_five_numbers_of_a_box_are_numpys_quantiles():
    values = np.random.default_rng(0).normal(size=37)
    np.testing.assert_allclose(_five(values), np.quantile(values, [0, 0.25, 0.5, 0.75, 1]))


def test_more_series_than_colours_differ_by_their_dashes():
    figure = figures.lines([1], {str(name): [1] for name in range(17)}, x_title="x", y_title="y")
    styles = {(trace["line"]["color"], trace["line"]["dash"]) for trace in figure.spec["data"]}
    assert len(styles) == 17


def test_labels_of_a_log_axis_keep_apart():
    figure = figures.lines([100, 200, 500, 540], {"s": [1, 2, 3, 4]}, x_title="x", y_title="y", log_x=True)
    axis = figure.spec["layout"]["xaxis"]
    assert axis["tickvals"] == [100, 200, 540]
    assert axis["ticktext"] == ["100", "200", "540"]


def test_a_picture_has_square_cells_and_few_ticks():
    figure = figures.heat_map(
        np.zeros((30, 60)),
        rows=list(map(str, range(30))),
        columns=list(map(str, range(60))),
        row_title="r",
        column_title="c",
        value_title="v",
        pixels=True,
    )
    layout = figure.spec["layout"]
    assert layout["yaxis"]["scaleanchor"] == "x"
    assert max(len(layout[axis]["tickvals"]) for axis in ("xaxis", "yaxis")) <= 8


def test_a_highlighted_bar_alone_has_the_colour_of_its_series():
    figure = figures.bars(["a", "b"], {"s": [1, 2]}, label_title="l", value_title="v", highlight="b")
    assert figure.spec["data"][0]["marker"]["color"] == ["@muted", "@series-1"]
