"""`data:` and `weights:` as recipes write them."""

from __future__ import annotations

import pytest

from transship.errors import OptionError
from transship.verbs.merge.recipe.read.schema import Recipe, parse_recipes
from transship.verbs.merge.recipe.read.sources import DataRule, WeightSearch


def only(text: str) -> Recipe:
    return parse_recipes(text)[0]


def test_data_is_a_reference_or_a_mapping_and_takes_the_defaults_of_the_recipe():
    result = only(
        "merge_method: regmean\nbase_model: b\ndata: {inputs: 64, split: validation}\nmodels:\n"
        "- {model: x, data: trec}\n- {model: y, data: {path: sst2, column: text, split: train}}\n"
        "- {model: z}\n"
    )
    x, y, z = (result.data_of(source.model) for source in result.modules[0].slices[0].sources)
    assert x == DataRule(path="trec", inputs=64, split="validation", where="recipe:5")
    assert y == DataRule(path="sst2", column="text", inputs=64, split="train", where="recipe:6")
    assert z is None


def test_weights_are_searched_for_on_request():
    text = "merge_method: linear\nmodels:\n- {model: x, data: a}\n"
    assert only(text).weights is None
    assert only(text + "weights: auto\n").weights == WeightSearch("outputs", 3, "recipe:4")
    given = only(text + "weights: {search: entropy, rounds: 1}\n").weights
    assert given is not None
    assert (given.search, given.rounds) == ("entropy", 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data: [1]", r"recipe:3: data is a path, a name or a mapping"),
        ("data: {path: 3}", r"recipe:3: path takes a text"),
        ("data: {path: a, inputs: 0}", r"recipe:3: inputs takes a whole number from 1"),
        ("data: {path: a, splitt: train}", r"recipe:3: .*'splitt'; did you mean 'split'"),
        ("data: {path: a, split: Test}", r"recipe:3: a merge that has read the test inputs"),
    ],
)
def test_mistakes_under_a_model_are_shown_with_their_line(line: str, message: str):
    with pytest.raises(OptionError, match=message):
        only(f"merge_method: regmean\nmodels:\n- {{model: x, {line}}}\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data: trec", r"recipe:4: data is a path, a name or a mapping"),
        ("data: {path: trec}", r"recipe:4: there is no key in data 'path'"),
        ("weights: automatic", r"recipe:4: weights is 'automatic'; write weights: auto"),
        ("weights: {rounds: -1}", r"recipe:4: rounds takes a whole number from 1"),
        ("weights: {round: 1}", r"recipe:4: .*'round'; did you mean 'rounds'"),
    ],
)
def test_mistakes_of_the_whole_recipe_are_shown_with_their_line(line: str, message: str):
    with pytest.raises(OptionError, match=message):
        only(f"merge_method: linear\nmodels:\n- {{model: x, data: a}}\n{line}\n")


def test_slices_take_no_data():
    with pytest.raises(OptionError, match=r"recipe:4: there is no key in a model entry 'data'"):
        only("merge_method: linear\nslices:\n- sources:\n  - {model: x, layer_range: [0, 1], data: a}\n")
