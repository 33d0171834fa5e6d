"""Symbols by letters, words, ids or one-hot channels: by any route the same tensors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.errors import DataError
from transship.verbs.adapt.rows.inputs import Inputs
from transship.verbs.adapt.rows.symbols import Alphabet, is_one_hot

IDS = np.random.default_rng(0).integers(0, 4, (12, 20))
ONE_HOT = np.eye(4, dtype=np.float32)[IDS].transpose(0, 2, 1)
LETTERS = ["".join("ACGT"[code] for code in row) for row in IDS]
WORDS = [" ".join(["abort", "buy", "click", "drop"][code] for code in row) for row in IDS]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (IDS, "tokens"),
        (ONE_HOT, "auto"),
        (ONE_HOT, "series"),
        (ONE_HOT.astype(bool), "tokens"),
        (LETTERS, "tokens"),
        (WORDS, "tokens"),
    ],
)
def test_every_route_gives_the_same_symbols(rows, kind: str):
    inputs = Inputs.fit(rows, kind=kind)
    assert inputs.kind == "tokens"
    np.testing.assert_array_equal(inputs.transform(rows), ONE_HOT)
    back = Inputs.from_dict(inputs.to_dict(), inputs.mean, inputs.std)
    np.testing.assert_array_equal(back.transform(rows[:3]), ONE_HOT[:3])


@pytest.mark.parametrize("change", ["scaled", "two at once", "a gap"])
def test_series_that_are_not_one_hot_stay_series(change: str):
    rows = ONE_HOT.copy()
    if change == "scaled":
        rows *= 2
    rows[0, :, 0] = {"two at once": 1, "a gap": 0}.get(change, rows[0, :, 0])
    assert not is_one_hot(rows, 1024)
    assert Inputs.fit(rows).kind == "series"


@given(st.lists(st.text("ABC", min_size=2, max_size=9), min_size=2, max_size=6))
def test_shorter_rows_are_filled_up_with_a_symbol_of_their_own(texts: list[str]):
    alphabet = Alphabet.of(texts)
    ids = alphabet.ids(texts)
    assert ["".join(alphabet.names[code] for code in row) for row in ids] == texts
    assert ids.shape == (len(texts), max(map(len, texts)))


def test_an_event_alone_is_a_word_among_rows_of_several():
    alphabet = Alphabet.of(["login", "login buy", "buy logout"])
    assert alphabet.names == ("buy", "login", "logout", "")
    assert alphabet.ids(["login"], 2).tolist() == [[1, 3]]


def test_rows_held_out_have_a_say_in_symbols_and_length():
    inputs = Inputs.fit(["AC", "CA"], kind="tokens", held=["ACGU"])
    assert (inputs.channels, inputs.size) == (5, (4,))


def test_rows_that_training_could_not_read_are_one_sentence():
    one_length, several = Alphabet.of(["ACG", "CGA"]), Alphabet.of(["ACG", "CG"])
    with pytest.raises(DataError, match="row 2 has the symbol 'T', which did not occur in training"):
        one_length.ids(["ACG", "ACT"], 3)
    with pytest.raises(DataError, match="row 1 has 2 symbols and the model reads 3"):
        one_length.ids(["AC"], 3)
    with pytest.raises(DataError, match="row 1 has 4 symbols and the model reads 3"):
        several.ids(["ACGA"], 3)
    assert several.ids(["A"], 3).tolist() == [[0, 3, 3]]
    with pytest.raises(DataError, match="inputs are no text"):
        several.ids(np.zeros((2, 3)))
