"""Settings: scalars, gradients and filters, resolved as the recipes' users know them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.errors import OptionError
from transship.verbs.merge.recipe.read.document import parse_documents
from transship.verbs.merge.recipe.read.parameters import (
    Rule,
    Setting,
    gradient,
    layer_position,
    read_settings,
    resolve,
)

numbers = st.floats(-5, 5, allow_nan=False)


def settings(text: str) -> dict[str, Setting]:
    return read_settings(
        parse_documents("parameters:\n" + "\n".join(f"  {line}" for line in text.splitlines()))[0]
    )


@given(st.lists(numbers, min_size=1, max_size=6), st.floats(0, 1))
def test_a_gradient_is_linear_between_its_values(values: list[float], position: float):
    x = position * (len(values) - 1)
    low = min(math.floor(x), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    expected = values[low] * (1 - (x - low)) + values[high] * (x - low)
    assert gradient(values, position) == pytest.approx(expected, abs=1e-9)
    assert min(values) - 1e-9 <= gradient(values, position) <= max(values) + 1e-9


@given(st.lists(numbers, min_size=1, max_size=6))
def test_a_gradient_starts_at_its_first_and_ends_at_its_last_value(values: list[float]):
    assert gradient(values, 0.0) == values[0]
    assert gradient(values, 1.0) == pytest.approx(values[-1])


def test_texts_and_booleans_are_picked_and_not_mixed():
    assert [gradient([True, False], t) for t in (0.0, 0.5, 0.99, 1.0)] == [True, True, True, False]
    assert gradient(["a", "b", "c"], 0.5) == "b"


def test_the_only_layer_of_a_slice_stands_at_its_end():
    assert layer_position(0, 1) == 1.0
    assert [layer_position(layer, 5) for layer in range(5)] == [0, 0.25, 0.5, 0.75, 1]


@given(
    st.lists(st.tuples(st.sampled_from(["mlp", "attn", "norm", "*", None]), numbers), min_size=1, max_size=5)
)
def test_the_first_filter_that_is_part_of_the_name_counts(pairs: list[tuple[str | None, float]]):
    setting = Setting(tuple(Rule(chosen, value) for chosen, value in pairs))
    name = "model.layers.3.mlp.up_proj.weight"
    matching = [value for chosen, value in pairs if chosen in ("mlp", "*", None)]
    assert setting.value(name, 0.0) == (matching[0] if matching else None)


@given(st.lists(st.sampled_from(["none", "other", "match"]), min_size=1, max_size=5))
def test_the_innermost_scope_with_a_matching_rule_counts(kinds: list[str]):
    scopes = []
    for place, kind in enumerate(kinds):
        chosen = {"other": "lm_head", "match": "mlp"}.get(kind)
        scopes.append({} if kind == "none" else {"weight": Setting((Rule(chosen, float(place)),))})
    expected = float(kinds.index("match")) if "match" in kinds else None
    assert resolve(scopes, "weight", "layers.0.mlp", 0.0) == expected


def test_settings_are_read_in_all_their_forms():
    result = settings(
        "weight: 0.5\n"
        "t: [0, 1e-1, .5]\n"
        "density: {filter: mlp, value: [0.2, 0.4]}\n"
        "scale:\n"
        "  - {filter: o_proj, value: 0}\n"
        "  - value: 1\n"
    )
    assert result["weight"].rules == (Rule(None, 0.5),)
    assert result["t"].rules == (Rule(None, (0, 0.1, 0.5)),)  # YAML 1.1 takes 1e-1 for text
    assert result["density"].rules == (Rule("mlp", (0.2, 0.4)),)
    assert result["scale"].value("layers.0.o_proj.weight", 0.0) == 0
    assert result["scale"].value("layers.0.q_proj.weight", 0.0) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weight: []", "empty list"),
        (
            "weight: {filtr: a, value: 1}",
            "recipe:2: there is no key in the parameter 'weight' 'filtr'; did you mean 'filter'",
        ),
        ("weight: {filter: a}", "has no value"),
        ("weight: {filter: 3, value: 1}", "part of a tensor's name"),
        ("weight: [1, {value: 2}]", "mixes plain values with filters"),
        ("weight: [[1]]", "takes a number"),
        ("weight: null", "takes a number"),
    ],
)
def test_a_setting_that_means_nothing_is_one_sentence_with_its_line(text: str, message: str):
    with pytest.raises(OptionError) as caught:
        settings(text)
    assert message in str(caught.value)
