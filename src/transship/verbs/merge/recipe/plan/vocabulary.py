"""Models with different vocabularies: one output vocabulary, and for each model where every row comes from.

Rows are put in the output's order before a method sees them. A row that a model lacks is its only owner's,
else the base's, else the mean of its owners', else zero; a recipe's token rules come first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from transship.errors import CheckpointError, OptionError
from transship.outside import read_json
from transship.verbs.merge.maths.operands import Floats, Reader
from transship.verbs.merge.recipe.plan.models import Aligned, Models, Readable
from transship.verbs.merge.recipe.plan.words import (
    extended,
    read_vocabulary,
    special_tokens,
    vocabulary_file,
    word_tensors,
)
from transship.verbs.merge.recipe.read.schema import Recipe
from transship.verbs.merge.recipe.read.sources import ModelReference, TokenizerRule, TokenRule

ZERO, MEAN, PADDING = -1, -2, -3


@dataclass(frozen=True)
class RowMap:
    """Where each row of the output comes from for one model: a model's number, or ZERO, MEAN or PADDING."""

    owner: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """The output's vocabulary.

    Attributes:
        rows: of the embedding, padding included.
        size: the number of tokens.
        tensors: the names of the tensors whose rows are words.
        maps: for each model.
        means: row → its owners, for rows that are a mean.
        order: the models by number.
        files: tokenizer files to write.
        carrier: the model whose other tokenizer files go along.
        notes: what happens to tokens, for the plan.
    """

    rows: int
    size: int
    tensors: frozenset[str]
    maps: Mapping[ModelReference, RowMap]
    means: Mapping[int, tuple[tuple[int, int], ...]]
    order: tuple[ModelReference, ...]
    files: Mapping[str, str]
    carrier: ModelReference
    notes: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """Say whether the rows of this tensor are words."""
        return name in self.tensors

    def reader(
        self, reference: ModelReference, name: str, models: Mapping[ModelReference, Aligned[Readable]]
    ) -> Reader:
        """Return the reader of a model's tensor with its rows in the output's order."""
        info = models[reference].info(name)
        assert info is not None
        width = info.size // max(info.shape[0], 1)
        gather = _Gather(self, self.maps[reference], name, models, width)

        def read(start: int, stop: int) -> Floats:
            first, last = start // width, -(-stop // width)
            return gather.rows(first, last).reshape(-1)[start - first * width : stop - first * width]

        return read


@dataclass
class _Gather:
    """Collects rows from several models, run by run."""

    vocabulary: Vocabulary
    rows_of: RowMap
    name: str
    models: Mapping[ModelReference, Aligned[Readable]]
    width: int
    _readers: dict[int, Reader] = field(default_factory=dict)
    _padding: Floats | None = None

    def rows(self, first: int, last: int) -> Floats:
        """Return the output rows [first, last) as float32."""
        out = np.zeros((last - first, self.width), np.float32)
        owner, row = self.rows_of.owner[first:last], self.rows_of.row[first:last]
        breaks = np.flatnonzero((np.diff(owner) != 0) | (np.diff(row) != 1)) + 1
        for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(owner)], strict=True):
            code, place = int(owner[start]), int(row[start])
            if code >= 0:
                values = self._read(code, place, place + stop - start)
                out[start:stop] = values.reshape(stop - start, self.width)
            elif code == MEAN:
                for index in range(start, stop):
                    owners = self.vocabulary.means[first + index]
                    out[index] = np.mean([self._read(number, at, at + 1) for number, at in owners], axis=0)
            elif code == PADDING:
                out[start:stop] = self._mean_row()
        return out

    def _read(self, number: int, first: int, last: int) -> Floats:
        if number not in self._readers:
            self._readers[number] = self.models[self.vocabulary.order[number]].reader(self.name)
        return self._readers[number](first * self.width, last * self.width)

    def _mean_row(self) -> Floats:
        """Return the mean of all rows that are words: what new rows start from."""
        if self._padding is None:
            total, step = np.zeros(self.width), max(1, (1 << 16) // self.width)
            for start in range(0, self.vocabulary.size, step):
                total += self.rows(start, min(start + step, self.vocabulary.size)).sum(
                    axis=0, dtype=np.float64
                )
            self._padding = (total / max(self.vocabulary.size, 1)).astype(np.float32)
        return self._padding


def build_vocabulary(recipe: Recipe, rule: TokenizerRule, models: Models) -> Vocabulary:
    """Return the output vocabulary that the recipe's tokenizer rule asks for."""
    order = tuple(models)
    donor = recipe.donor
    tables = {reference: word_tensors(model) for reference, model in models.items()}
    known = _vocabularies(models, donor, tables)
    tokens, files, carrier = _output(rule, donor, models, known)
    builder = _Builder(
        recipe, rule, order, known, {ref: max(t.values(), default=0) for ref, t in tables.items()}
    )
    size = max(tokens.values()) + 1
    multiple = rule.pad_to_multiple_of or 1
    rows = -(-size // multiple) * multiple
    maps, means, notes = builder.maps(tokens, size, rows)
    names = frozenset(name for table in tables.values() for name in table)
    return Vocabulary(rows, size, names, maps, means, order, files, carrier, tuple(notes))


def _vocabularies(
    models: Models,
    donor: ModelReference,
    tables: Mapping[ModelReference, Mapping[str, int]],
) -> dict[ModelReference, dict[str, int]]:
    """Return each model's token → row; a model without a tokenizer has the donor's if it has as many rows."""
    known = {}
    for reference, model in models.items():
        rows = read_vocabulary(model.model.folder)
        if rows is not None:
            known[reference] = rows
    if donor not in known:
        raise CheckpointError(
            "it has no tokenizer.json, so that a tokenizer rule cannot work",
            where=str(donor),
            fix="add its tokenizer",
        )
    for reference in models:
        if reference not in known:
            if max(tables[reference].values(), default=0) != max(tables[donor].values(), default=0):
                raise CheckpointError(
                    "it has no tokenizer, and other rows than the base",
                    where=str(reference),
                    fix="add its tokenizer",
                )
            known[reference] = known[donor]
    return known


def _output(
    rule: TokenizerRule,
    donor: ModelReference,
    models: Models,
    known: Mapping[ModelReference, Mapping[str, int]],
) -> tuple[dict[str, int], dict[str, str], ModelReference]:
    """Return the output's token → row, the tokenizer files to write, and the model whose files go along."""
    carrier = rule.source if isinstance(rule.source, ModelReference) else donor
    tokens = dict(known[carrier])
    new: list[tuple[str, int, dict[str, Any] | None]] = []
    wanted: list[tuple[str, dict[str, Any] | None]] = []
    if rule.source == "union":
        for reference in models:
            special = special_tokens(models[reference].model.folder)
            by_row = sorted(known[reference].items(), key=lambda entry: entry[1])
            # plain words first, then the tokens that carry settings
            wanted += [(token, None) for token, _ in by_row if token not in special]
            wanted += [(token, special[token]) for token, _ in by_row if token in special]
    wanted += [(token, None) for token in rule.tokens]
    following = max(tokens.values(), default=-1) + 1
    for token, settings in wanted:
        if token not in tokens:
            tokens[token] = following
            new.append((token, following, settings))
            following += 1
    files: dict[str, str] = {}
    if new:
        path = vocabulary_file(models[carrier].model.folder)
        if path is None or path.name != "tokenizer.json":
            raise CheckpointError(
                "tokens can only be added to a tokenizer.json",
                where=str(carrier),
                fix="save its fast tokenizer",
            )
        files["tokenizer.json"] = json.dumps(extended(read_json(path), new), ensure_ascii=False)
    return tokens, files, carrier


@dataclass
class _Builder:
    """Decides for each model and token where the row comes from."""

    recipe: Recipe
    rule: TokenizerRule
    order: Sequence[ModelReference]
    known: Mapping[ModelReference, Mapping[str, int]]
    limits: Mapping[ModelReference, int]

    def maps(
        self, tokens: Mapping[str, int], size: int, rows: int
    ) -> tuple[dict[ModelReference, RowMap], dict[int, tuple[tuple[int, int], ...]], list[str]]:
        """Return the row maps, the rows that are means, and notes on tokens that not all models have."""
        maps = {
            reference: RowMap(np.full(rows, ZERO, np.int32), np.zeros(rows, np.int64))
            for reference in self.order
        }
        means: dict[int, tuple[tuple[int, int], ...]] = {}
        notes: list[str] = []
        for token, place in tokens.items():
            owners = [
                (number, at)
                for number in range(len(self.order))
                if (at := self._own(number, token)) is not None
            ]
            given = self.rule.tokens.get(token)
            default = None
            if given is not None or len(owners) < len(self.order):
                default, note = self._default(token, given, owners)
                if default[0] == MEAN:
                    means[place] = tuple(owners)
                notes.append(f"{token!r}: {note}")
            rows_here = dict(owners)
            for number, reference in enumerate(self.order):
                if number in rows_here and not (given is not None and given.force):
                    choice = (number, rows_here[number])
                else:
                    assert default is not None
                    choice = default
                maps[reference].owner[place], maps[reference].row[place] = choice
        for row_map in maps.values():
            row_map.owner[size:] = PADDING
            row_map.row[size:] = np.arange(rows - size)
        return maps, means, notes

    def _own(self, number: int, token: str) -> int | None:
        """Return a model's row for a token; an entry beyond its rows counts as none."""
        row = self.known[self.order[number]].get(token)
        return row if row is not None and row < self.limits[self.order[number]] else None

    def _default(
        self, token: str, given: TokenRule | None, owners: list[tuple[int, int]]
    ) -> tuple[tuple[int, int], str]:
        if given is not None:
            return self._given(token, given)
        if len(owners) == 1:
            return owners[0], f"row of {self.order[owners[0][0]]}, its only owner"
        base = self.recipe.base_model
        for number, row in owners:
            if self.order[number] == base:
                return (number, row), f"row of the base {base} where a model has none"
        if owners:
            return (MEAN, 0), f"mean of {len(owners)} models where a model has none"
        return (ZERO, 0), "zeros: no model has it"

    def _given(self, token: str, given: TokenRule) -> tuple[tuple[int, int], str]:
        forced = " in every model" if given.force else " where a model has none"
        if given.model is None:
            return (ZERO, 0), "zeros, by the recipe" + forced
        number = list(self.order).index(given.model)
        row = given.token_id if given.token_id is not None else self._own(number, given.token or token)
        if row is None or row >= self.limits[given.model]:
            raise OptionError(
                f"{given.model} has no row for {given.token or given.token_id or token!r}",
                where=self.rule.where,
                fix=f"choose another source for the token {token!r}",
            )
        return (number, row), f"row {row} of {given.model}, by the recipe" + forced
