"""Which words a model speaks: tokenizer files as plain data, and whether two models agree on their rows.

Merged rows of an embedding mean one word each. No tokenizer library is needed for that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transship.errors import CheckpointError
from transship.outside import read_json
from transship.verbs.merge.recipe.plan.models import Aligned, Model, Models
from transship.verbs.merge.recipe.read.schema import Recipe

_TABLE = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|shared|embed_in|tok_embeddings|tokens_embed)\.weight$"
)
_WORDS = re.compile(
    r"(^|\.)(lm_head|embed_out|output_projection|vocab_projector|predictions(\.decoder)?|lm_head\.decoder"
    r"|generator_lm_head|final_logits_bias)(\.weight|\.bias|$)"
)
FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
_TOKEN_SETTINGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def vocabulary_file(folder: Path | None) -> Path | None:
    """Return the file that holds the vocabulary, the fast tokenizer's first."""
    if folder is None:
        return None
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def file_hash(path: Path) -> str:
    """Return a hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_vocabulary(folder: Path | None) -> dict[str, int] | None:
    """Return token → row of a model's tokenizer, None where it has none that can be read as text."""
    path = vocabulary_file(folder)
    if path is None:
        return None
    if path.name == "vocab.txt":
        return {line: row for row, line in enumerate(path.read_text(encoding="utf-8").splitlines())}
    data = read_json(path)
    if path.name == "vocab.json":
        added = path.parent / "added_tokens.json"
        data = {**data, **(read_json(added) if added.is_file() else {})}
        return {str(token): int(row) for token, row in data.items()}
    return tokens_of(data, path)


def tokens_of(data: dict[str, Any], path: Path) -> dict[str, int]:
    """Return token → row of a `tokenizer.json`: its model's vocabulary and the added tokens."""
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    try:
        if isinstance(vocabulary, dict):
            rows = {str(token): int(row) for token, row in vocabulary.items()}
        elif isinstance(vocabulary, list):
            rows = {str(entry[0]): row for row, entry in enumerate(vocabulary)}
        else:
            raise TypeError("no vocabulary")
        for token in data.get("added_tokens") or ():
            rows[str(token["content"])] = int(token["id"])
    except (TypeError, ValueError, KeyError, IndexError):
        raise CheckpointError(
            "its vocabulary cannot be read", where=str(path), fix="save the tokenizer again with transformers"
        ) from None
    return rows


def special_tokens(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Return the added tokens of a `tokenizer.json` by content, with their settings."""
    path = vocabulary_file(folder)
    if path is None or path.name != "tokenizer.json":
        return {}
    return {str(token["content"]): token for token in read_json(path).get("added_tokens") or ()}


def extended(
    data: dict[str, Any], tokens: Iterable[tuple[str, int, dict[str, Any] | None]]
) -> dict[str, Any]:
    """Return a `tokenizer.json` with (token, row, settings) added; settings may be another tokenizer's."""
    added = list(data.get("added_tokens") or ())
    for content, row, settings in tokens:
        entry = {key: (settings or {}).get(key, False) for key in _TOKEN_SETTINGS}
        added.append({"id": row, "content": content, **entry})
    return {**data, "added_tokens": added}


def read_chat_template(folder: Path | None) -> str | None:
    """Return a model's chat template, from its own file or from `tokenizer_config.json`."""
    if folder is None:
        return None
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    template = read_json(config).get("chat_template") if config.is_file() else None
    return template if isinstance(template, str) else None


def without_template(folder: Path | None) -> str | None:
    """Return `tokenizer_config.json` without its chat template, None where there is nothing to change."""
    path = folder / "tokenizer_config.json" if folder is not None else None
    if path is None or not path.is_file():
        return None
    config = read_json(path)
    if config.pop("chat_template", None) is None:
        return None
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class WordDifference:
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


class TokenizerWords:
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

    def difference(self, other: TokenizerWords) -> WordDifference | None:
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
        return WordDifference(word, mine.get(word), theirs.get(word), moved is not None)

    def _same_file(self, other: TokenizerWords) -> bool:
        if self.file is None or other.file is None:
            return self.file is other.file
        return self.file.name == other.file.name and file_hash(self.file) == file_hash(other.file)


def word_tensors(model: Aligned[Model]) -> dict[str, int]:
    """Return the tensors whose rows are words, with their number of rows."""
    infos = {name: info for name in model.names if (info := model.info(name)) is not None}
    tables = {name: info.shape[0] for name, info in infos.items() if _TABLE.search(name)}
    rows = set(tables.values())
    others = {
        name: info.shape[0]
        for name, info in infos.items()
        if _WORDS.search(name) and info.shape and info.shape[0] in rows
    }
    return {**tables, **others}


def check_words(recipe: Recipe, models: Models) -> None:
    """Refuse any difference between the vocabularies of models that have word embeddings.

    The others are held against the base's, or, where it has no tokenizer, against the first model's that has.
    """
    if not word_tensors(models[recipe.donor]):
        return
    order = dict.fromkeys((recipe.donor, *models))
    known = {reference: TokenizerWords(models[reference].model.folder) for reference in order}
    first = next((reference for reference, words in known.items() if words.file is not None), None)
    if first is None:
        return
    for reference, words in known.items():
        difference = known[first].difference(words)
        if difference is not None:
            recipe.complain(
                f"its vocabulary differs from that of {first}, as in {difference.word!r}, "
                "and there is no rule",
                str(reference),
                "add tokenizer_source: union (or base)",
            )
