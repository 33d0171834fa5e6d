import pickle

import pytest

from transship import errors


def test_an_error_is_one_sentence_with_place_fault_and_remedy():
    error = errors.MatchError(
        "the source has 12 layers and the target 24", where="wide/config.json", fix="pass --depth"
    )
    assert str(error) == "wide/config.json: the source has 12 layers and the target 24; pass --depth"


@pytest.mark.parametrize("kind", errors.TransshipError.__subclasses__())
def test_every_kind_survives_a_trip_between_processes(kind: type[errors.TransshipError]):
    error = pickle.loads(pickle.dumps(kind("what", where="where", fix="fix")))
    assert type(error) is kind
    assert (error.what, error.where, error.fix) == ("what", "where", "fix")


def test_text_from_outside_cannot_steer_a_terminal():
    title = "a\x1b]0;owned\x07b\rc‮d\udce4"
    assert errors.printable(title) == "a\\x1b]0;owned\\x07b\\rc\\u202ed\\udce4"
    assert errors.printable("two\n\tlines, ünïcode ✓") == "two\n\tlines, ünïcode ✓"
