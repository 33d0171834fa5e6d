import json

import pytest
from click.testing import CliRunner

from transship import registry
from transship.cli import group


def test_every_method_of_every_verb_is_listed():
    record = json.loads(CliRunner().invoke(group, ["methods", "--json"], catch_exceptions=False).stdout)
    assert [(card["verb"], card["name"]) for card in record] == [
        (card.verb, card.name) for card in registry.describe_all()
    ]


@pytest.mark.parametrize("verb", registry.VERBS)
def test_people_see_parameters_with_their_defaults(verb: str):
    text = CliRunner().invoke(group, ["methods", verb], catch_exceptions=False).stdout
    for card in registry.describe_all([verb]):
        assert f"{card.verb} --method {card.name}" in text
        for parameter in card.parameters:
            rest = f": {parameter.type} = {parameter.default}"
            spelled = parameter.name.replace("-", "_")  # as recipes have it
            assert f"{parameter.name}{rest}" in text or (verb == "merge" and f"{spelled}{rest}" in text)


def test_what_recipes_can_name_is_shown_as_they_spell_it():
    text = CliRunner().invoke(group, ["methods", "merge"]).output
    assert "merge --method dare-ties, in recipes merge_method: dare_ties" in text
    assert "    learning_rate: " in text
    assert "in recipes" not in CliRunner().invoke(group, ["methods", "transport"]).output
