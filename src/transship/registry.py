"""Finds the methods of a verb. A method is one file; its name is the file's name; nothing else lists it."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from transship.errors import OptionError

VERBS = ("transport", "merge", "translate", "adapt")
# a verb's command with methods of its own → where they are; `transship methods VERB` lists them with the verb
COMMANDS = {"merge start": "merge.fusion"}


class Method:
    """What every method of every verb is: a frozen dataclass whose fields are its parameters.

    The first sentence of the docstring is its summary; `paper` is printed beside it.
    """

    paper: ClassVar[str] = ""


@dataclass(frozen=True)
class Parameter:
    """One field of a method, as the command line and the docs show it."""

    name: str
    type: str
    default: Any
    help: str


@dataclass(frozen=True)
class MethodCard:
    """What `transship methods` prints of one method."""

    verb: str
    name: str
    summary: str
    paper: str
    parameters: tuple[Parameter, ...]


def methods_package(verb: str) -> str:
    """Return the package whose files are the methods of `verb`, or of one of its commands."""
    return f"transship.verbs.{COMMANDS.get(verb, verb)}.methods"


def method_names(verb: str) -> tuple[str, ...]:
    """Return the names of a verb's methods, sorted, without importing any of them."""
    folder = Path(__file__).parent.joinpath(*methods_package(verb).split(".")[1:])
    return tuple(sorted(file.stem.replace("_", "-") for file in folder.glob("[a-z]*.py")))


def method_class(verb: str, name: str) -> type[Method]:
    """Import and return the one method that the file `name` of `verb` defines."""
    known = method_names(verb)
    if name not in known:
        raise unknown(name, known, kind="method", where=f"{verb} --method")
    module = importlib.import_module(f"{methods_package(verb)}.{name.replace('-', '_')}")
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Method) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define exactly one Method, and defines {len(found)}")
    return found[0]


def build_method(verb: str, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Return the method `name` with `options` (strings from the command line, or values) as its fields."""
    kind = method_class(verb, name)
    return kind(**parse_fields(kind, options or {}, where=f"{verb} --method {name}"))


def parse_fields(kind: type, options: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return `options` as values for the fields of the dataclass `kind`; a name it has not is an error."""
    hints = typing.get_type_hints(kind)
    fields = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(kind) if field.init}
    values = {}
    for key, value in options.items():
        plain = key.replace("_", "-")
        if plain not in fields:
            raise unknown(key, tuple(fields), kind="parameter", where=where)
        values[fields[plain]] = _parse(value, hints[fields[plain]], where=f"{where}: {key}")
    return values


def describe(verb: str, name: str) -> MethodCard:
    """Return the card of one method: summary, paper and parameters, read from its class."""
    kind = method_class(verb, name)
    text = inspect.getdoc(kind) or ""
    # what a family of methods shares is explained once, at their common base
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        helps |= _attribute_helps(inspect.cleandoc(base.__doc__ or ""))
    hints = typing.get_type_hints(kind)
    parameters = tuple(
        Parameter(
            field.name.replace("_", "-"),
            _type_name(hints[field.name]),
            _default(field),
            helps.get(field.name, ""),
        )
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.init
    )
    return MethodCard(verb, name, text.split("\n\n")[0].replace("\n", " "), kind.paper, parameters)


def describe_all(verbs: Iterable[str] = VERBS) -> list[MethodCard]:
    """Return the cards of all methods of `verbs`, those of their commands included."""
    families = [family for verb in verbs for family in (verb, *_commands(verb))]
    return [describe(family, name) for family in families for name in method_names(family)]


def _commands(verb: str) -> list[str]:
    return [command for command in COMMANDS if command.split()[0] == verb]


def unknown(given: str, known: Iterable[str], *, kind: str, where: str) -> OptionError:
    """Return the error for a name that does not exist, with the nearest one that does."""
    known = sorted(known)
    near = difflib.get_close_matches(given, known, n=1)
    fix = f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(known) or 'none exists'}"
    return OptionError(f"there is no {kind} '{given}'", where=where, fix=fix)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _attribute_helps(doc: str) -> dict[str, str]:
    """Read the `Attributes:` part of a Google-style docstring."""
    part = re.search(r"^Attributes:\n((?:[ \t]+.*\n?|\n)+)", doc, re.MULTILINE)
    if part is None:
        return {}
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", part[1], re.MULTILINE)
    return {name: re.sub(r"\s*\n\s*", " ", text) for name, text in entries}


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(_type_name(part) for part in typing.get_args(hint))
    return "none" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _parse(value: Any, hint: Any, *, where: str) -> Any:
    """Turn a command line's string into the field's type; other values are checked, not converted."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for part in parts:
        parsed = _parse_one(value, part)
        if parsed is not _NO_FIT:
            return parsed
    raise OptionError(f"'{value}' does not fit", where=where, fix=f"give {_type_name(hint)}")


_NO_FIT = object()
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _parse_one(value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        return next(
            (choice for choice in typing.get_args(hint) if value == choice or value == str(choice)), _NO_FIT
        )
    if hint is type(None):
        return None if value is None or value == "none" else _NO_FIT
    if hint is bool:
        return value if isinstance(value, bool) else _WORDS.get(str(value).lower(), _NO_FIT)
    if hint in (int, float):
        try:
            return _NO_FIT if isinstance(value, bool) else _number(value, hint)
        except (TypeError, ValueError):
            return _NO_FIT
    return value if hint is Any or isinstance(value, typing.get_origin(hint) or hint) else _NO_FIT


def _number(value: Any, hint: type) -> Any:
    number = hint(value)
    if not isinstance(value, str) and number != value:
        raise ValueError(value)
    return number
