"""Numbers as people read them, and strings that cannot do harm."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.report.values import Spread, clean, column_decimals, script_json, show

any_text = st.text(st.characters(exclude_categories=[]), max_size=40)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (True, "yes"),
        (1234, "1234"),
        (1234567, "1,234,567"),
        (-12, "−12"),
        (0.5, "0.5"),
        (0.123456, "0.1235"),
        (-0.25, "−0.25"),
        (12345.678, "12,346"),
        (1.5e-7, "1.50e−7"),
        (-2.5e12, "−2.50e12"),
        (0.0, "0"),
        (Spread(0.5, 0.25), "0.5 ± 0.25"),
        (np.float32(0.5), "0.5"),
        (np.int64(7), "7"),
        ([1, 2.5, "a"], "1, 2.5, a"),
        ("text", "text"),
    ],
)
def test_values_are_shown_as_people_read_them(value: object, shown: str):
    assert show(value) == shown


def test_decimals_are_those_of_the_column():
    assert column_decimals([0.5, 0.123456]) == 3
    assert column_decimals([12.5, 0.1]) == 2
    assert column_decimals([1234.5, 0.1]) == 0
    assert column_decimals([1e-9, 1.0]) is None
    assert column_decimals([1, 2, "a"]) is None
    assert show(0.5, 3) == "0.500"
    assert show(-0.0001, 2) == "0.00"
    assert show(7, 3) == "7"


@given(any_text)
def test_clean_text_can_be_written_and_keeps_what_is_printable(text: str):
    cleaned = clean(text)
    cleaned.encode("utf-8")
    assert clean(cleaned) == cleaned
    assert clean("naïve ☃ 𝄞\ttab\nline") == "naïve ☃ 𝄞\ttab\nline"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | any_text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_json_in_a_script_holds_no_sign_that_could_end_it_and_is_valid(value: object):
    text = script_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_plotly_text_is_shown_as_it_stands_and_templates_are_left_alone():
    spec = {"name": "<b>&", "hovertemplate": "<b>%{x}</b>", "x": np.array([1.0, math.nan])}
    assert json.loads(script_json(spec)) == {
        "name": "&lt;b&gt;&amp;",
        "hovertemplate": "<b>%{x}</b>",
        "x": [1.0, None],
    }
