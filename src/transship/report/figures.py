"""The usual figures from numbers alone: axes titled, colours as tokens that follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from transship.report.blocks import Figure, Table
from transship.report.values import number, plain, show

_LONGEST_TICK = 26
_TICKS, _PICTURE_TICKS = 40, 8
_NEAREST = 0.08  # of a log axis' length: labels that are nearer run into each other on a phone
_SERIES_COLOURS = 8

Values = Sequence[Any]


_PIXELS = {"constrain": "domain", "scaleanchor": "x"}
_CELLS = {
    "type": "heatmap",
    "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<br><b>%{z:.4g}</b><extra></extra>",
}


def heat_map(
    values: Sequence[Values],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str,
    column_title: str,
    value_title: str,
    caption: str = "",
    limits: tuple[float, float] | None = None,
    square: bool = False,
    pixels: bool = False,
) -> Figure:
    """Return a heat map of `values` [rows][columns]; the first row is on top.

    `limits` fix the colours' ends; `square` makes cells about square; `pixels` shows a picture: cells exactly
    square, without gaps, and few ticks. Numbers are written into the cells of up to 15 × 15.
    """
    grid = [[number(value) for value in plain(row)] for row in plain(values)]
    if len(grid) != len(rows) or any(len(row) != len(columns) for row in grid):
        raise ValueError(f"the values do not fill {len(rows)} rows of {len(columns)} columns")
    known = [value for row in grid for value in row if value is not None and value == value] or [0.0]
    ends = limits or (min(known), max(known))
    trace: dict[str, Any] = _CELLS | {
        "z": grid,
        "colorscale": "@sequential",
        "colorbar": {"title": {"text": value_title, "side": "top"}},
        "customdata": [[[row, column] for column in columns] for row in rows],
    }
    trace |= {"zmin": ends[0], "zmax": ends[1], "xgap": 0 if pixels else 1, "ygap": 0 if pixels else 1}
    if max(len(rows), len(columns)) <= 15:
        decimals = 2 if max(abs(value) for value in known) < 100 else 0
        trace["text"] = [["" if value is None else show(value, decimals) for value in row] for row in grid]
    most = _PICTURE_TICKS if pixels else _TICKS
    x_axis = _ticks(columns, column_title, most) | ({"constrain": "domain"} if pixels else {})
    y_axis = _ticks(rows, row_title, most) | {"autorange": "reversed"} | (_PIXELS if pixels else {})
    span = f"{row_title} ({len(rows)}) by {column_title} ({len(columns)})"
    cell = (46 if square else 34) if len(rows) <= 15 else 8 if pixels else 22
    return Figure(
        {"data": [trace], "layout": {"xaxis": x_axis, "yaxis": y_axis}},
        caption=caption,
        alt=f"Heat map of {value_title}: {span}, from {show(min(known))} to {show(max(known))}.",
        height=max(280, min(820, 150 + cell * len(rows))),
        width=max(480, 300 + 50 * len(columns)) if len(columns) <= 12 else None,
        numbers=Table([row_title, *columns], [[row, *line] for row, line in zip(rows, grid, strict=True)]),
    )


def lines(
    x: Values,
    series: Mapping[str, Values],
    *,
    x_title: str,
    y_title: str,
    bands: Mapping[str, tuple[Values, Values]] | None = None,
    caption: str = "",
    log_x: bool = False,
) -> Figure:
    """Return a line per series over `x`, each with its band (lower, upper) where one is given."""
    xs, data = plain(x), []
    for place, (name, values) in enumerate(series.items()):
        colour = _colour(place)
        if bands and name in bands:
            data += _band(xs, bands[name], place, name)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "legendgroup": name,
                "x": xs,
                "y": _same_length(name, xs, values),
                "line": {"color": colour, "width": 2.2, "dash": _dash(place)},
                "marker": {"color": colour, "size": 7},
                "hovertemplate": "%{x}, <b>%{y:.4g}</b>",
            }
        )
    layout = {
        # on a log axis the measured places make better ticks than powers and their fractions
        "xaxis": _axis(x_title, log=log_x)
        | (
            {"tickvals": _apart(xs), "ticktext": [f"{x:g}" for x in _apart(xs)]}
            if log_x and len(xs) <= 10
            else {}
        ),
        "yaxis": _axis(y_title),
        "hovermode": "x unified",
        "showlegend": len(series) > 1,
    }
    table = Table(
        [x_title, *series], [list(row) for row in zip(xs, *map(plain, series.values()), strict=True)]
    )
    alt = f"Lines of {y_title} over {x_title}: {', '.join(series)}."
    return Figure({"data": data, "layout": layout}, caption=caption, alt=alt, numbers=table)


def bars(
    labels: Sequence[str],
    series: Mapping[str, Values],
    *,
    label_title: str,
    value_title: str,
    caption: str = "",
    horizontal: bool | None = None,
    stacked: bool = False,
    highlight: str | None = None,
) -> Figure:
    """Return bars of each series per label.

    They lie when labels are long or many (`horizontal` decides otherwise), so that no label is cut. With
    `highlight`, the bars of that label have the series' colour and all others are grey.
    """
    lying = horizontal if horizontal is not None else len(labels) > 6 or max(map(len, labels), default=0) > 12
    data = []
    for place, (name, values) in enumerate(series.items()):
        heights, places = _same_length(name, labels, values), list(range(len(labels)))
        trace: dict[str, Any] = {
            "type": "bar",
            "name": name,
            "orientation": "h" if lying else "v",
            "x": heights if lying else places,
            "y": places if lying else heights,
            "marker": {"color": _highlighted(labels, highlight, _colour(place))},
            "customdata": list(labels),
            "hovertemplate": f"%{{customdata}}: <b>%{{{'x' if lying else 'y'}:.4g}}</b>",
        }
        data.append(trace)
    names = _ticks(labels, label_title) | ({"autorange": "reversed"} if lying else {})
    amounts = _axis(value_title)
    layout = {
        "xaxis": amounts if lying else names,
        "yaxis": names if lying else amounts,
        "barmode": "stack" if stacked else "group",
        "bargap": 0.28,
        "showlegend": len(series) > 1,
    }
    thickness = 1 if stacked else len(series)
    height = max(240, min(1600, 120 + len(labels) * (16 + 16 * thickness))) if lying else 400
    rows = zip(labels, *map(plain, series.values()), strict=True)
    table = Table([label_title, *series], [list(row) for row in rows])
    alt = f"Bars of {value_title} by {label_title}: {', '.join(series)}."
    return Figure({"data": data, "layout": layout}, caption=caption, alt=alt, height=height, numbers=table)


def scatter(
    groups: Mapping[str, tuple[Values, Values]],
    *,
    x_title: str,
    y_title: str,
    labels: Mapping[str, Sequence[str]] | None = None,
    caption: str = "",
) -> Figure:
    """Return points (x, y) by group, with labels on hover."""
    data: list[dict[str, Any]] = []
    table_rows = []
    for place, (name, (x, y)) in enumerate(groups.items()):
        xs = plain(x)
        ys = _same_length(name, xs, y)
        texts = list(labels[name]) if labels and name in labels else [name] * len(xs)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": xs,
                "y": ys,
                "text": texts,
                "marker": {"color": _colour(place), "size": 8, "opacity": 0.8, "symbol": _symbol(place)},
                "hovertemplate": "%{text}<br>%{x:.4g}, <b>%{y:.4g}</b><extra></extra>",
            }
        )
        table_rows += [list(row) for row in zip(texts, xs, ys, strict=True)]
    layout: dict[str, Any] = {
        "xaxis": _axis(x_title),
        "yaxis": _axis(y_title),
        "showlegend": len(groups) > 1,
    }
    alt = f"Points of {y_title} against {x_title}: {', '.join(groups)}."
    table = Table(["point", x_title, y_title], table_rows) if len(table_rows) <= 500 else None
    return Figure({"data": data, "layout": layout}, caption=caption, alt=alt, numbers=table)


def boxes(
    groups: Mapping[str, Values],
    *,
    group_title: str,
    value_title: str,
    caption: str = "",
) -> Figure:
    """Return the spread of each group's values, as boxes with all points where they are few."""
    data = []
    for place, (name, values) in enumerate(groups.items()):
        trace: dict[str, Any] = {
            "type": "box",
            "name": name,
            "x": [place] * len(values),
            "y": plain(values),
            "line": {"color": _colour(place), "width": 1.6},
            "marker": {"color": _colour(place), "size": 5, "opacity": 0.7},
            "boxpoints": "all" if len(values) <= 50 else "outliers",
            "jitter": 0.4,
            "pointpos": 0,
        }
        data.append(trace)
    layout = {"xaxis": _ticks(list(groups), group_title), "yaxis": _axis(value_title), "showlegend": False}
    rows = [[name, len(values), *_five(values)] for name, values in groups.items()]
    table = Table(
        [group_title, "count", "smallest", "lower quartile", "median", "upper quartile", "largest"], rows
    )
    alt = f"Spread of {value_title} by {group_title}: {', '.join(groups)}."
    return Figure({"data": data, "layout": layout}, caption=caption, alt=alt, numbers=table)


def _axis(title: str, *, log: bool = False) -> dict[str, Any]:
    return {"title": {"text": title}} | ({"type": "log"} if log else {})


def _apart(xs: Sequence[float]) -> list[float]:
    """Return the places of a log axis whose labels have room: the last, and those far enough before it."""
    kept: list[float] = []
    span = math.log(max(xs) / min(xs)) if xs and min(xs) > 0 else 0.0
    for x in sorted(xs, reverse=True):
        if not kept or math.log(kept[-1] / x) >= _NEAREST * span:
            kept.append(x)
    return kept[::-1]


def _ticks(labels: Sequence[str], title: str, most: int = _TICKS) -> dict[str, Any]:
    """Return an axis of names; long ones are shortened in the middle, since both ends of a path tell most."""
    step = max(1, -(-len(labels) // most))
    shown = range(0, len(labels), step)
    return _axis(title) | {
        "tickmode": "array",
        "tickvals": list(shown),
        "ticktext": [_shortened(str(labels[place])) for place in shown],
        "showgrid": False,
        "zeroline": False,
    }


def _shortened(label: str) -> str:
    if len(label) <= _LONGEST_TICK:
        return label
    half = (_LONGEST_TICK - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def _colour(place: int) -> str:
    return f"@series-{place % _SERIES_COLOURS + 1}"


def _highlighted(labels: Sequence[str], chosen: str | None, colour: str) -> str | list[str]:
    return colour if chosen is None else [colour if label == chosen else "@muted" for label in labels]


def _dash(place: int) -> str:
    """Return another dash each time the colours begin again, so that no two lines look alike."""
    return ("solid", "dash", "dot", "dashdot")[place // _SERIES_COLOURS % 4]


def _symbol(place: int) -> str:
    return ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")[place % 8]


def _band(xs: list[Any], band: tuple[Values, Values], place: int, name: str) -> list[dict[str, Any]]:
    low, high = (_same_length(name, xs, side) for side in band)
    shared = {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "legendgroup": name,
        "showlegend": False,
        "hoverinfo": "skip",
    }
    edge = {"line": {"width": 0}}
    fill = f"@band-{place % _SERIES_COLOURS + 1}"
    return [shared | edge | {"y": low}, shared | edge | {"y": high, "fill": "tonexty", "fillcolor": fill}]


def _same_length(name: str, xs: Sequence[Any], values: Values) -> list[Any]:
    ys: list[Any] = list(plain(values))
    if len(ys) != len(xs):
        raise ValueError(f"{name} has {len(ys)} values for {len(xs)} places")
    return ys


def _five(values: Values) -> list[float | None]:
    """Return the smallest, the quartiles (linear interpolation) and the largest value."""
    ordered = sorted(float(value) for value in plain(values))
    if not ordered:
        return [None] * 5
    places = [(len(ordered) - 1) * quarter / 4 for quarter in range(5)]
    pairs = [(ordered[int(at)], ordered[min(int(at) + 1, len(ordered) - 1)], at % 1) for at in places]
    return [low + (high - low) * part for low, high, part in pairs]
