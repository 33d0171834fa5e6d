"""Two vocabularies: equal, with more words, with words in other rows, and not known."""

import json
from pathlib import Path

import pytest

from transship.verbs.merge.recipe.plan import words
from transship.verbs.merge.recipe.plan.words import TokenizerWords, WordDifference


def spoken(folder: Path, rows: dict[str, int] | list[str], *, name: str = "tokenizer.json") -> TokenizerWords:
    folder.mkdir()
    if name == "vocab.txt":
        (folder / name).write_text("\n".join(rows))
    else:
        (folder / name).write_text(json.dumps({"model": {"vocab": rows}, "added_tokens": []}))
    return TokenizerWords(folder)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"a": 0, "b": 1, "c": 2}, None),
        ({"a": 0, "b": 1, "c": 2, "d": 3}, WordDifference("d", None, 3, moved=False)),
        ({"a": 0, "b": 1}, WordDifference("c", 2, None, moved=False)),
        ({"a": 0, "b": 2, "c": 1, "d": 3}, WordDifference("b", 1, 2, moved=True)),
        (
            {"d": 3, "b": 2},
            WordDifference("b", 1, 2, moved=True),
        ),  # a moved word comes before a missing one
        ({"x": 0, "y": 1}, WordDifference("a", 0, None, moved=True)),  # no word in common
    ],
)
def test_a_difference_is_a_moved_word_before_one_that_only_one_has(
    other: dict[str, int], expected: WordDifference | None, tmp_path: Path
):
    first = spoken(tmp_path / "first", {"a": 0, "b": 1, "c": 2})
    assert first.difference(spoken(tmp_path / "other", other)) == expected


def test_a_difference_says_where_the_word_is():
    assert str(WordDifference("b", 1, 2, moved=True)) == "'b' is in row 2, there in row 1"
    assert str(WordDifference("a", 0, None, moved=True)) == "'a' is missing, there in row 0"


def test_files_of_other_kinds_are_compared_by_what_they_hold(tmp_path: Path):
    first = spoken(tmp_path / "first", {"a": 0, "b": 1})
    assert first.difference(spoken(tmp_path / "same", ["a", "b"], name="vocab.txt")) is None
    moved = first.difference(spoken(tmp_path / "moved", ["b", "a"], name="vocab.txt"))
    assert moved == WordDifference("a", 0, 1, moved=True)


def test_equal_files_are_not_parsed_and_a_first_one_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    parsed, parse = [], words.read_vocabulary

    def read(folder: Path | None) -> dict[str, int] | None:
        parsed.append(folder)
        return parse(folder)

    monkeypatch.setattr(words, "read_vocabulary", read)
    first = spoken(tmp_path / "first", {"a": 0})
    assert first.difference(spoken(tmp_path / "same", {"a": 0})) is None
    assert parsed == []
    for name in ("one", "two"):
        assert first.difference(spoken(tmp_path / name, {"a": 0, name: 1})) is not None
    assert [folder.name for folder in parsed if folder is not None] == ["first", "one", "two"]


def test_a_model_without_words_differs_from_none(tmp_path: Path):
    first = spoken(tmp_path / "first", {"a": 0})
    (tmp_path / "bare").mkdir()
    for other in (TokenizerWords(None), TokenizerWords(tmp_path / "bare")):
        assert other.file is None
        assert first.difference(other) is None
        assert other.difference(first) is None
