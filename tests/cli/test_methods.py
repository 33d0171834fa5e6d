import json

import pytest
from click.testing import CliRunner

from transship import registry
from transship.cli import group


def test_every_method_of_every_verb_is_listed():
    found = json.loads(CliRunner().invoke(group, ["methods", "--json"], catch_exceptions=False).stdout)
    assert [(card["verb"], card["name"]) for card in found] == [
        (card.verb, card.name) for card in registry.describe_all()
    ]


@pytest.mark.parametrize("verb", registry.VERBS)
def test_people_see_parameters_with_their_defaults(verb: str):
    text = CliRunner().invoke(group, ["methods", verb], catch_exceptions=False).stdout
    for card in registry.describe_all([verb]):
        assert f"{card.verb} --method {card.name}" in text
        for parameter in card.parameters:
            assert f"{parameter.name}: {parameter.type} = {parameter.default}" in text
