"""Whether two models speak the same words: merged rows of an embedding mean one word each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transship.verbs.merge.recipe.plan.tokenizers import file_hash, read_vocabulary, vocabulary_file


@dataclass(frozen=True)
class Difference:
    """A word in which a vocabulary differs from a first one.

    Attributes:
        word: one in another row where there is any, else one that only one of the two has.
        first: its row in the first vocabulary, or None.
        other: its row in the other one, or None.
        moved: whether rows mean other words: a common word has another row, or no word is common.
    """

    word: str
    first: int | None
    other: int | None
    moved: bool

    def __str__(self) -> str:
        place = "is missing" if self.other is None else f"is in row {self.other}"
        return f"{self.word!r} {place}, there {'missing' if self.first is None else f'in row {self.first}'}"


class Words:
    """The vocabulary of a model's tokenizer; parsed once, and only where it has to be.

    Attributes:
        file: that holds it; None where the model has none.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.file = folder, vocabulary_file(folder)

    @cached_property
    def rows(self) -> dict[str, int] | None:
        """Word → row; None where it cannot be read as text."""
        return read_vocabulary(self.folder)

    def difference(self, other: Words) -> Difference | None:
        """Return a word in which the other vocabulary differs; None where none does, or one is not known."""
        if self._same_file(other):
            return None
        mine, theirs = self.rows, other.rows
        if mine is None or theirs is None or mine == theirs:
            return None
        moved = next((word for word, row in mine.items() if theirs.get(word, row) != row), None)
        if moved is None and mine and theirs and mine.keys().isdisjoint(theirs):
            moved = next(iter(mine))
        word = moved
        if word is None:
            word = next(word for word in (*mine, *theirs) if mine.get(word) != theirs.get(word))
        return Difference(word, mine.get(word), theirs.get(word), moved is not None)

    def _same_file(self, other: Words) -> bool:
        if self.file is None or other.file is None:
            return self.file is other.file
        return self.file.name == other.file.name and file_hash(self.file) == file_hash(other.file)
