"""Finds the methods of a verb. A method is one file; its name is the file's name; nothing else lists it.

Other packages bring methods by the entry point group `transship.methods`. The name of such an entry point is
`VERB.METHOD`, its value the class, or the module that defines it and no other method:

    [project.entry-points."transship.methods"]
    "merge.median" = "median_merge:Median"
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal

from transship.errors import OptionError

GROUP, METHOD = "transship.methods", "transship.registry.Method"
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


def method_names(verb: str, facet: str | None = None) -> tuple[str, ...]:
    """Return the names of a verb's methods, sorted, without importing any of them.

    With a `facet`, only of methods whose class defines or inherits a function of that name.
    """
    names = {file.stem.replace("_", "-") for file in _folder(verb).glob("[a-z]*.py")} | _entry_points(
        verb
    ).keys()
    return tuple(sorted(name for name in names if facet is None or _has_facet(verb, name, facet)))


def has_method(verb: str, name: str) -> bool:
    """Return whether there is such a method; other packages are asked only when no file of ours is it."""
    return _file(verb, name) is not None or name in _entry_points(verb)


def method_class(verb: str, name: str) -> type[Method]:
    """Import and return the one method that the file or the entry point `name` of `verb` defines."""
    if _file(verb, name) is not None:
        module = importlib.import_module(f"{methods_package(verb)}.{name.replace('-', '_')}")
        return _only_method(module)
    points = _entry_points(verb)
    if name not in points:
        raise unknown(name, method_names(verb), kind="method", where=f"{verb} --method")
    try:
        target = points[name].load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise OptionError(
            f"the method cannot be imported from {points[name].value} ({error})",
            where=f"{verb} --method {name}",
            fix="update or remove the package that declares it",
        ) from error
    kind: object = _only_method(target) if inspect.ismodule(target) else target
    if not _is_method(kind):
        raise OptionError(
            f"{points[name].value} is not a dataclass that derives from transship.registry.Method",
            where=f"{verb} --method {name}",
            fix="update or remove the package that declares it",
        )
    return kind


def _folder(verb: str) -> Path:
    return Path(__file__).parent.joinpath(*methods_package(verb).split(".")[1:])


def _file(verb: str, name: str) -> Path | None:
    file = _folder(verb) / f"{name.replace('-', '_')}.py"
    return file if re.fullmatch("[a-z][a-z0-9-]*", name) and file.is_file() else None


def _entry_points(verb: str) -> dict[str, metadata.EntryPoint]:
    points = metadata.entry_points(group=GROUP)
    return {point.name[len(verb) + 1 :]: point for point in points if point.name.startswith(f"{verb}.")}


def _only_method(module: types.ModuleType) -> type[Method]:
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Method) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise TypeError(f"{module.__name__} must define exactly one Method, and defines {len(classes)}")
    return classes[0]


def _is_method(kind: object) -> typing.TypeGuard[type[Method]]:
    return isinstance(kind, type) and issubclass(kind, Method) and dataclasses.is_dataclass(kind)


def _has_facet(verb: str, name: str, facet: str) -> bool:
    """Return whether a method has a facet, from its source alone: importing a method may import torch."""
    file, kind = _file(verb, name), ""
    if file is None:
        module, _, kind = _entry_points(verb)[name].value.partition(":")
        file = _source(module)
    if file is None:
        return False
    kinds = [kind] if kind else [node.name for node in _parsed(file).body if isinstance(node, ast.ClassDef)]
    return any(facet in functions for kind in kinds if METHOD in (functions := _functions(file, kind)))


def _source(module: str) -> Path | None:
    ours = Path(__file__).parent.parent.joinpath(*module.split(".")).with_suffix(".py")
    if ours.is_file():
        return ours
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _functions(file: Path, kind: str) -> set[str]:
    """Return the functions with a body of the class `kind` and its bases; `Method` itself counts as one."""
    tree = _parsed(file)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            origins = {alias.asname or alias.name: alias.name for alias in node.names}
            if kind in origins:
                source = _source(node.module)
                home = f"{node.module}.{origins[kind]}"
                return (
                    {METHOD}
                    if home == METHOD
                    else set()
                    if source is None
                    else _functions(source, origins[kind])
                )
        if isinstance(node, ast.ClassDef) and node.name == kind:
            names = {part.name for part in node.body if isinstance(part, ast.FunctionDef) and _has_body(part)}
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            return names.union(*(_functions(file, base) for base in bases))
    return set()


def _has_body(function: ast.FunctionDef) -> bool:
    """Return whether a function does more than to say what it would have to do."""
    last = function.body[-1]
    if isinstance(last, ast.Raise):
        return "NotImplementedError" not in ast.unparse(last)
    return not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant))


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
    helps = attribute_helps(kind)
    hints = typing.get_type_hints(kind)
    parameters = tuple(
        Parameter(
            field.name.replace("_", "-"),
            type_name(hints[field.name]),
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


def _parse(value: Any, hint: Any, *, where: str) -> Any:
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
