"""YAML whose mappings and lists remember their lines, so that a mistake is shown where it stands."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from transship.errors import OptionError
from transship.registry import unknown

# beyond what people write: a few bytes may stand for all the memory there is, and libyaml walks nested nodes
# by calling itself, so that deep ones end the process
MOST_BYTES, MOST_DEPTH, MOST_NODES, MOST_SIGNS = 1_000_000, 50, 100_000, 100


class Block(dict[str, Any]):
    """A mapping of a recipe: the file and line it starts on, and the line of each key."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__()
        self.path, self.line = path, line
        self.lines: dict[str, int] = {}

    def where(self, key: str | None = None) -> str:
        """Return `file:line` of a key, or of the mapping itself."""
        return f"{self.path}:{self.lines.get(key, self.line) if key else self.line}"

    def error(self, what: str, fix: str, *, key: str | None = None) -> OptionError:
        """Return the error about one key of this mapping."""
        return OptionError(what, where=self.where(key), fix=fix)

    def expect(self, allowed: Iterable[str], what: str) -> None:
        """Refuse keys that nobody reads, and name the nearest one that somebody does."""
        known = tuple(allowed)
        for key in self:
            if key not in known:
                raise unknown(key, known, kind=f"key in {what}", where=self.where(key))

    def text(self, key: str) -> str | None:
        """Return the text at a key, None where there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{key} takes a text", "write it in quotes", key=key)
        return value

    def count(self, key: str, least: int = 1) -> int | None:
        """Return the whole number at a key, None where there is none."""
        value = self.get(key)
        if value is not None and (type(value) is not int or value < least):
            raise self.error(f"{key} takes a whole number from {least}", f"write {key}: 16", key=key)
        return value

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """Return one of some words, the first where there is none."""
        value: Any = self.get(key, choices[0])
        value = "off" if value is False else value  # YAML reads a bare off as false
        if str(value).replace("-", "_") not in choices:
            raise unknown(str(value), choices, kind=key, where=self.where(key))
        return str(value)

    def blocks(self, key: str) -> list[Block]:
        value = self.get(key)
        if not isinstance(value, Items) or not value:
            raise self.error(f"{key} takes a list", f"write {key}: with one '- ' entry for each", key=key)
        for item, line in zip(value, value.lines, strict=True):
            if not isinstance(item, Block):
                raise Block(self.path, line).error(f"an entry of {key} is a mapping", "write '- model: path'")
        return list(value)


class Items(list[Any]):
    """A list of a recipe, with the line of each item."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__()
        self.path, self.line = path, line
        self.lines: list[int] = []


def read_text(path: str | Path) -> str:
    """Return the text of a recipe file."""
    try:
        with Path(path).open("rb") as file:
            return _not_too_long(file.read(MOST_BYTES + 1).decode("utf-8"), str(path))
    except FileNotFoundError:
        raise OptionError(
            "there is no such recipe", where=str(path), fix="give the path of a YAML file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"the recipe cannot be read ({error})", where=str(path), fix="give a UTF-8 YAML file"
        ) from None


def _not_too_long(text: str, path: str) -> str:
    if len(text) > MOST_BYTES:
        raise OptionError(
            f"the recipe is longer than {MOST_BYTES // 10**6} MB", where=path, fix="give the recipe alone"
        )
    return text


def _check_depth(text: str, loader: Any, path: str) -> None:
    """Refuse a text that is nested too deeply while it is read event by event, which calls nothing deeper."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise _too_deep(path, event.start_mark.line + 1)


def _too_deep(path: str, line: int) -> OptionError:
    return OptionError(
        f"it is nested more than {MOST_DEPTH} deep", where=f"{path}:{line}", fix="write it flatter"
    )


def parse_documents(text: str, path: str = "recipe") -> list[Block]:
    """Return the mappings of a text: one, or several divided by `---`; `path` is what errors call it."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(_not_too_long(text, path), loader, path)
        nodes = [node for node in yaml.compose_all(text, Loader=loader) if node is not None]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or error.context or "the syntax is wrong"
        raise OptionError(
            f"this is no YAML ({problem})", where=f"{path}:{line}", fix="mend the syntax at this line"
        ) from None
    except yaml.YAMLError as error:
        raise OptionError(
            f"this is no YAML ({str(error).splitlines()[0]})", where=path, fix="give a YAML file"
        ) from None
    reader = _Reader(path)
    documents = [reader.read(node, ()) for node in nodes]
    for node, document in zip(nodes, documents, strict=True):
        if not isinstance(document, Block):
            raise OptionError(
                "a recipe is a mapping of keys to values",
                where=f"{path}:{node.start_mark.line + 1}",
                fix="start with merge_method: and models:",
            )
    if not documents:
        raise OptionError("the recipe is empty", where=path, fix="start with merge_method: and models:")
    return documents


@functools.cache
def _constructor() -> yaml.SafeLoader:
    return yaml.SafeLoader("")


@dataclass
class _Reader:
    """Turns nodes into values; an alias counts anew wherever it stands."""

    path: str
    nodes: int = 0

    def read(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> Any:
        """Return the value of a node that stands in those `above` it."""
        line = node.start_mark.line + 1
        if any(node is other for other in above):
            raise OptionError(
                "an alias contains itself", where=f"{self.path}:{line}", fix="break the loop of & and * marks"
            )
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise OptionError(
                f"with its aliases written out it has more than {MOST_NODES:,} entries",
                where=f"{self.path}:{line}",
                fix="use fewer & and * marks",
            )
        if len(above) >= MOST_DEPTH:
            raise _too_deep(self.path, line)
        above = (*above, node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, above)
        if isinstance(node, yaml.SequenceNode):
            items = Items(self.path, line)
            for child in node.value:
                items.append(self.read(child, above))
                items.lines.append(child.start_mark.line + 1)
            return items
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            if node.tag != "tag:yaml.org,2002:str" and len(node.value) > MOST_SIGNS:
                raise ValueError("too long")  # a number to base 60 of a megabyte takes minutes
            return _constructor().construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError):
            raise OptionError(
                f"'{node.value[:MOST_SIGNS]}' cannot be read as {node.tag[:MOST_SIGNS]}",
                where=f"{self.path}:{node.start_mark.line + 1}",
                fix="write a plain number, text, true or false",
            ) from None

    def _mapping(self, node: yaml.MappingNode, above: tuple[yaml.Node, ...]) -> Block:
        block = Block(self.path, node.start_mark.line + 1)
        inherited: list[Any] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                inherited += [self.read(part, above) for part in parts]
                continue
            key = _key(key_node, f"{self.path}:{line}")
            if key in block:
                raise OptionError(
                    f"the key '{key}' stands here twice",
                    where=f"{self.path}:{line}",
                    fix="keep one of the two",
                )
            block[key] = self.read(value_node, above)
            block.lines[key] = line
        for parent in inherited:
            if not isinstance(parent, Block):
                raise block.error("<< takes a mapping", "give it an alias of a mapping")
            for key, value in parent.items():
                if key not in block:
                    block[key], block.lines[key] = value, parent.lines[key]
        return block


def _key(node: yaml.Node, where: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise OptionError("a key is a word, and no list or mapping", where=where, fix="write a plain word")
    return str(node.value)
