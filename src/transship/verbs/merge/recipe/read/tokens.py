"""What a recipe says of vocabularies: where the tokenizer comes from, and rules for single tokens."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path

from transship.registry import unknown
from transship.verbs.merge.recipe.read.document import Block
from transship.verbs.merge.recipe.read.reference import ModelReference, parse_reference, read_reference

_SOURCES = ("union", "base")


@dataclass(frozen=True)
class TokenRule:
    """Where one token's row comes from.

    Attributes:
        model: the model that gives the row; None for zeros.
        token: the token whose row is taken, when it is another one.
        token_id: the row's number, when that is given.
        force: also replace the rows of models that have the token.
    """

    model: ModelReference | None = None
    token: str | None = None
    token_id: int | None = None
    force: bool = False


@dataclass(frozen=True)
class TokenizerRule:
    """The `tokenizer` key: a source, token rules and padding.

    Attributes:
        source: `union`, `base`, or a model.
        tokens: rules by token.
        pad_to_multiple_of: rounds the number of rows up.
    """

    source: str | ModelReference = "union"
    tokens: dict[str, TokenRule] = field(default_factory=dict)
    pad_to_multiple_of: int | None = None
    where: str = ""

    def models(self) -> tuple[ModelReference, ...]:
        """Return the models that the rule names."""
        named = [rule.model for rule in self.tokens.values() if rule.model is not None]
        return ((self.source,) if isinstance(self.source, ModelReference) else ()) + tuple(named)


def read_tokenizer(block: Block) -> TokenizerRule | None:
    """Return what `tokenizer_source` or `tokenizer` say, None when neither is there."""
    if block.get("tokenizer_source") is not None:
        return TokenizerRule(_source(block, "tokenizer_source"), where=block.where("tokenizer_source"))
    rule = block.get("tokenizer")
    if rule is None:
        return None
    if not isinstance(rule, Block):
        raise block.error("tokenizer takes a mapping", "write tokenizer: {source: union}", key="tokenizer")
    rule.expect(("source", "tokens", "pad_to_multiple_of"), "tokenizer")
    source = _source(rule, "source") if rule.get("source") is not None else "union"
    multiple = rule.get("pad_to_multiple_of")
    if multiple is not None and (type(multiple) is not int or multiple < 1):
        raise rule.error("pad_to_multiple_of takes a positive number", "write 64", key="pad_to_multiple_of")
    return TokenizerRule(source, _token_rules(rule), multiple, block.where("tokenizer"))


def _source(block: Block, key: str) -> str | ModelReference:
    value = block[key]
    if value in _SOURCES:
        return str(value)
    if isinstance(value, str):
        near = difflib.get_close_matches(value, _SOURCES, n=1)
        if near and not Path(value).exists():
            raise unknown(value, _SOURCES, kind="source of a tokenizer", where=block.where(key))
        return parse_reference(value.removeprefix("model:"), block.where(key))
    return read_reference(block, key)


def _token_rules(rule: Block) -> dict[str, TokenRule]:
    tokens = rule.get("tokens")
    if tokens is None:
        return {}
    if not isinstance(tokens, Block):
        raise rule.error("tokens takes a mapping of tokens", "write tokens: {<s>: {source: …}}", key="tokens")
    return {token: _token_rule(tokens, token) for token in tokens}


def _token_rule(tokens: Block, token: str) -> TokenRule:
    entry = tokens[token]
    if not isinstance(entry, Block):
        raise tokens.error(f"the rule for '{token}' is no mapping", "write {source: model}", key=token)
    entry.expect(("source", "force"), f"the token '{token}'")
    force = entry.get("force", False)
    if not isinstance(force, bool):
        raise entry.error("force takes true or false", "write force: true", key="force")
    source = entry.get("source")
    if source is None:
        raise entry.error(f"the rule for '{token}' has no source", "add source: with a model")
    if isinstance(source, Block) and "kind" in source:
        return _special(source, token, force)
    return TokenRule(read_reference(entry, "source"), force=force)


def _special(source: Block, token: str, force: bool) -> TokenRule:
    kind = source["kind"]
    if kind == "zero":
        source.expect(("kind",), f"the source of '{token}'")
        return TokenRule(force=force)
    if kind != "model_token":
        raise source.error(f"there is no token source '{kind}'", "choose model_token or zero", key="kind")
    source.expect(("kind", "model", "token", "token_id"), f"the source of '{token}'")
    if source.get("model") is None:
        raise source.error("model_token names no model", "add model: path")
    text, number = source.get("token"), source.get("token_id")
    if (text is None) == (number is None):
        raise source.error("model_token needs token or token_id", "give exactly one of them")
    if number is not None and (type(number) is not int or number < 0):
        raise source.error("token_id is a row number", "write token_id: 2", key="token_id")
    return TokenRule(
        read_reference(source, "model"),
        token=None if text is None else str(text),
        token_id=number,
        force=force,
    )
