"""What a dataclass says of its fields: help, types, and values from the strings of a command line.

Methods and the settings of verbs are dataclasses. The command line, `transship methods` and the documentation
read them here, so that an option is written once.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

from transship.errors import OptionError


class OptionFacts(TypedDict, total=False):
    """What a command line needs to know of a field beside its name, type, default and help.

    Attributes:
        flags: its options, where they are not `--field-name`.
        metavar: what its value is called in the help.
        least: the smallest value.
        most: the largest value.
        help: the help, where that of the docstring does not serve.
        absent: whether it is no option, and set from Python only.
        file: whether its path is that of a file, which is no folder.
        exists: whether its path must exist.
        negative: the flag that turns a true field off, as `--no-baseline`.
        callback: click's callback for its value.
    """

    flags: tuple[str, ...]
    metavar: str
    least: float
    most: float
    help: str
    absent: bool
    file: bool
    exists: bool
    negative: str
    callback: Callable[..., Any]


def setting(default: Any = dataclasses.MISSING, **facts: Unpack[OptionFacts]) -> Any:
    """Return a field with a default (a mutable one by its class) and what a command line needs to know."""
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


def parse_fields(kind: type, options: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return `options` as values for the fields of the dataclass `kind`; a name it has not is an error."""
    hints = typing.get_type_hints(kind)
    fields = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(kind) if field.init}
    values = {}
    for key, value in options.items():
        plain = key.replace("_", "-")
        if plain not in fields:
            raise unknown(key, tuple(fields), kind="parameter", where=where)
        values[fields[plain]] = parse_value(value, hints[fields[plain]], where=f"{where}: {key}")
    return values


def unknown(given: str, known: Iterable[str], *, kind: str, where: str) -> OptionError:
    """Return the error for a name that does not exist, with the nearest one that does."""
    known = sorted(known)
    near = difflib.get_close_matches(given, known, n=1)
    fix = f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(known) or 'none exists'}"
    return OptionError(f"there is no {kind} '{given}'", where=where, fix=fix)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return what a field is when nobody sets it; None where it must be set."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def attribute_helps(kind: type) -> dict[str, str]:
    """Return field → its help: the `Attributes:` of the docstrings of a class and of what it derives from."""
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        helps |= _attribute_entries(inspect.cleandoc(base.__doc__ or ""))
    return helps


def _attribute_entries(doc: str) -> dict[str, str]:
    """Read the `Attributes:` part of a Google-style docstring."""
    part = re.search(r"^Attributes:\n((?:[ \t]+.*\n?|\n)+)", doc, re.MULTILINE)
    if part is None:
        return {}
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", part[1], re.MULTILINE)
    return {name: re.sub(r"\s*\n\s*", " ", text) for name, text in entries}


def type_name(hint: Any) -> str:
    """Return an annotation as people write it: `int | none`, `zero | svd`."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(type_name(part) for part in typing.get_args(hint))
    return "none" if hint is type(None) else getattr(hint, "__name__", str(hint))


def parse_value(value: Any, hint: Any, *, where: str) -> Any:
    """Turn a command line's string into the field's type; other values are checked, not converted."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for part in parts:
        parsed = _parse_one(value, part)
        if parsed is not _NO_FIT:
            return parsed
    raise OptionError(f"'{value}' does not fit", where=where, fix=f"give {type_name(hint)}")


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
