"""What a finish can be asked for on a command line."""

import pytest

from transship.errors import OptionError
from transship.finish.settings import RATES, STEPS, Finish


@pytest.mark.parametrize("moves", ["tensor", "row", "weights"])
def test_a_name_has_its_steps_and_rates(moves):
    parsed = Finish.parse(moves)
    assert (parsed.moves, parsed.steps, parsed.rates) == (moves, STEPS[moves], RATES[moves])
    assert str(parsed) == f"{moves}:{STEPS[moves]}"


def test_steps_stand_behind_a_colon():
    assert Finish.parse("weights:40").steps == 40


def test_none_moves_nothing():
    assert (str(Finish.parse("none")), Finish.parse("none").steps) == ("none", 0)


@pytest.mark.parametrize("text", ["rows", "weights:", "weights:many", "weights:-3", "none:3", ""])
def test_anything_else_is_refused_in_one_sentence(text: str):
    with pytest.raises(OptionError, match="--finish"):
        Finish.parse(text)


def test_trials_are_short_and_few_steps_are_all_tried():
    assert Finish.parse("weights:1600").trial == 400
    few = Finish.parse("weights:20")
    assert (few.trial, few.most_steps) == (20, 60)
    assert Finish(moves="weights", steps=20, rates=(0.1,)).most_steps == 20
