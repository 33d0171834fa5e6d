"""Where a recipe takes things from: what it calls a model, whose words it speaks, which data it reads."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import transship as ts
from transship.errors import OptionError
from transship.registry import unknown
from transship.verbs.merge.recipe.read.document import Block

OBJECTIVES = ("outputs", "entropy", "agreement")
_TOKENIZERS = ("union", "base")
_DATA_TEXTS = ("path", "kind", "column", "label", "pair", "split", "split_column", "config")
_DATA_KEYS = (*_DATA_TEXTS, "inputs")
_TURNS = "{% for message in messages %}"
_HEADER = "'<|start_header_id|>'"
CHAT_TEMPLATES = {
    "chatml": _TURNS
    + "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama3": "{{ bos_token }}"
    + _TURNS
    + f"{{{{ {_HEADER} + message['role'] + '<|end_header_id|>\\n\\n' }}}}"
    + "{{ (message['content'] | trim) + '<|eot_id|>' }}{% endfor %}"
    + f"{{% if add_generation_prompt %}}{{{{ {_HEADER} + 'assistant<|end_header_id|>\\n\\n' }}}}"
    + "{% endif %}",
    "mistral": "{{ bos_token }}"
    + _TURNS
    + "{% if message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    + "{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% endfor %}",
    "alpaca": _TURNS
    + "{% if message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
    + "{% elif message['role'] == 'assistant' %}"
    + "{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}"
    + "{% else %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
    "exaone": _TURNS
    + "{{ '[|' + message['role'] + '|]' + message['content'] }}"
    + "{% if message['role'] == 'user' %}{{ '\\n' }}{% else %}{{ '[|endofturn|]\\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}",
}


@dataclass(frozen=True)
class Location:
    """One folder or hub repository, at a revision."""

    path: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.path}@{self.revision}" if self.revision else self.path


@dataclass(frozen=True)
class ModelReference:
    """A model of a recipe: its weights, and the adapter to add to them."""

    model: Location
    lora: Location | None = None

    def __str__(self) -> str:
        return f"{self.model}+{self.lora}" if self.lora else str(self.model)

    @property
    def is_recipe(self) -> bool:
        """Say whether the model is the output of another recipe file."""
        return self.model.path.endswith((".yaml", ".yml"))


def parse_reference(text: str, where: str) -> ModelReference:
    """Return the reference that `path[@revision][+adapter[@revision]]` stands for.

    A text that is the path of an existing folder or file is that path, whatever signs are in it.
    """
    if not text:
        raise OptionError("the model has no name", where=where, fix="give a path or owner/name")
    if Path(text).exists():
        return ModelReference(Location(text))
    parts = text.split("+")
    if len(parts) > 2:
        raise _confusing(text, "+", where)
    return ModelReference(*(_location(part, text, where) for part in parts))


def _location(part: str, text: str, where: str) -> Location:
    if not part:
        raise OptionError(f"'{text}' has nothing on one side of +", where=where, fix="write path+adapter")
    if Path(part).exists():
        return Location(part)
    path, *revision = part.split("@")
    if len(revision) > 1 or not path:
        raise _confusing(text, "@", where)
    return Location(path, revision[0] if revision else None)


def _confusing(text: str, sign: str, where: str) -> OptionError:
    return OptionError(
        f"'{text}' has more than one {sign}",
        where=where,
        fix="write a mapping {model: {path: …, revision: …}, lora: {path: …}} for a path with such signs",
    )


def read_reference(parent: Block, key: str) -> ModelReference:
    """Return the reference at `parent[key]`: a text, or a mapping of `model` and `lora`."""
    value = parent[key]
    if isinstance(value, str):
        return parse_reference(value, parent.where(key))
    if not isinstance(value, Block):
        raise parent.error("a model is a path, owner/name or a mapping", "write model: path", key=key)
    value.expect(("model", "lora", "override_architecture", "path", "revision"), "a model")
    if "path" in value:
        return ModelReference(_mapped_location(value))
    if "model" not in value:
        raise value.error("the mapping names no model", "add model: {path: …}")
    lora = _nested_location(value, "lora") if value.get("lora") is not None else None
    return ModelReference(_nested_location(value, "model"), lora)


def _nested_location(block: Block, key: str) -> Location:
    value = block[key]
    if isinstance(value, str):
        return Location(value)
    if not isinstance(value, Block):
        raise block.error(f"{key} takes a path or a mapping", f"write {key}: {{path: …}}", key=key)
    return _mapped_location(value)


def _mapped_location(block: Block) -> Location:
    block.expect(("path", "revision"), "a model")
    path, revision = block.get("path"), block.get("revision")
    if not isinstance(path, str) or not (revision is None or isinstance(revision, str)):
        raise block.error("a model needs a path", "add path: as text")
    return Location(path, revision)


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
    multiple = rule.count("pad_to_multiple_of")
    return TokenizerRule(source, _token_rules(rule), multiple, block.where("tokenizer"))


def _source(block: Block, key: str) -> str | ModelReference:
    value = block[key]
    if value in _TOKENIZERS:
        return str(value)
    if isinstance(value, str):
        near = difflib.get_close_matches(value, _TOKENIZERS, n=1)
        if near and not Path(value).exists():
            raise unknown(value, _TOKENIZERS, kind="source of a tokenizer", where=block.where(key))
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
    text, number = source.get("token"), source.count("token_id", least=0)
    if (text is None) == (number is None):
        raise source.error("model_token needs token or token_id", "give exactly one of them")
    other = None if text is None else str(text)
    return TokenRule(read_reference(source, "model"), token=other, token_id=number, force=force)


@dataclass(frozen=True)
class DataRule:
    """What a recipe says of the data of one model, or of all of them.

    Attributes:
        path: a path, a name in the data folders, or a hub id; None where only defaults are given.
        kind: of data; None finds it out.
        column: of the inputs.
        label: the column of classes, for methods that need them.
        pair: the second column of texts.
        split: which rows; `train` by default where the data has splits.
        split_column: where the rows' splits are.
        config: of a hub data set.
        inputs: at most so many rows, drawn by the recipe's seed.
        where: file and line, for errors.
    """

    path: str | None = None
    kind: str | None = None
    column: str | None = None
    label: str | None = None
    pair: str | None = None
    split: str | None = None
    split_column: str | None = None
    config: str | None = None
    inputs: int | None = None
    where: str = ""

    def over(self, defaults: DataRule | None) -> DataRule:
        """Return this rule with what it does not say taken from `defaults`."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return self if defaults is None else replace(defaults, **given)

    def load(self, *, labelled: bool = False) -> ts.data.Dataset:
        """Return the data, with its labels where they are asked for."""
        names: dict[str, Any] = {name: getattr(self, name) for name in _DATA_TEXTS if name != "label"}
        return ts.data.load(names.pop("path"), label=self.label if labelled else False, **names)


@dataclass(frozen=True)
class WeightSearch:
    """How `weights: auto` chooses the weights.

    Attributes:
        search: what is made small on unlabelled inputs: `outputs`, the distance of the merged model's answers
            to those of each task's own model; `entropy` of the answers; `agreement`, the share of inputs
            whose class is another than that of the task's own model.
        rounds: over all models, each with two trials.
        where: file and line, for errors.
    """

    search: str = "outputs"
    rounds: int = 3
    where: str = ""


def read_data(parent: Block, *, path: bool = True) -> DataRule | None:
    """Return the rule at `data`: a reference as text, or a mapping; None where there is none."""
    value = parent.get("data")
    if value is None:
        return None
    if isinstance(value, str) and path:
        return DataRule(path=value, where=parent.where("data"))
    if not isinstance(value, Block):
        fix = "write data: reviews.parquet, or data: {path: …, column: …}"
        raise parent.error("data is a path, a name or a mapping", fix, key="data")
    value.expect(_DATA_KEYS if path else _DATA_KEYS[1:], "data")
    texts = {name: value.text(name) for name in _DATA_TEXTS}
    rule = DataRule(**texts, inputs=value.count("inputs"), where=value.where())
    if path and rule.path is None:
        raise value.error("the data has no path", "add path: with a file, a name or a hub id")
    if rule.kind is not None and rule.kind not in ts.data.KINDS:
        raise unknown(rule.kind, ts.data.KINDS, kind="kind of data", where=value.where("kind"))
    if rule.split is not None and rule.split.strip().lower() in ("test", "testing"):
        raise value.error(
            "a merge that has read the test inputs cannot be judged by them",
            "use split: train or validation",
            key="split",
        )
    return rule


def read_search(parent: Block) -> WeightSearch | None:
    """Return the rule at `weights`: `auto`, or a mapping; None where the recipe gives the weights itself."""
    value: Any = parent.get("weights")
    if value is None:
        return None
    if value == "auto":
        return WeightSearch(where=parent.where("weights"))
    if not isinstance(value, Block):
        raise parent.error(
            f"weights is {value!r}",
            "write weights: auto, or give each model parameters: {weight: …}",
            key="weights",
        )
    value.expect(("search", "rounds"), "weights")
    search = value.choice("search", OBJECTIVES)
    return WeightSearch(search, value.count("rounds") or WeightSearch.rounds, value.where())
