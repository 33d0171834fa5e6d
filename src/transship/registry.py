"""Finds the methods of a verb. A method is one file; its name is the file's name; nothing else lists it.

Other packages bring methods by the entry point group `transship.methods`. The name of such an entry point is
`VERB.METHOD`, its value the class, or the module that defines it and no other method:

    [project.entry-points."transship.methods"]
    "merge.median" = "median_merge:Median"
"""

from __future__ import annotations

import ast
import dataclasses
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
from typing import Any, ClassVar

from transship.errors import OptionError
from transship.fields import attribute_helps, default_of, parse_fields, type_name, unknown

__all__ = [
    "VERBS",
    "Method",
    "MethodCard",
    "Parameter",
    "build_method",
    "describe",
    "describe_all",
    "has_method",
    "method_class",
    "method_name",
    "method_names",
    "methods_package",
    "parse_fields",
    "unknown",
]

GROUP, METHOD = "transship.methods", "transship.registry.Method"
VERBS = ("transport", "merge", "translate", "adapt")


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
    """Return the package whose files are the methods of `verb`."""
    return f"transship.verbs.{verb}.methods"


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


def method_name(kind: type[Method]) -> str:
    """Return the name by which `method_class` finds a class: its entry point's, or that of its file."""
    module = kind.__module__
    if not module.startswith("transship.verbs."):
        for point in metadata.entry_points(group=GROUP):
            if point.value in (module, f"{module}:{kind.__qualname__}"):
                return point.name.partition(".")[2]
    return module.rpartition(".")[2].replace("_", "-")


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
            default_of(field),
            " ".join(filter(None, (helps.get(field.name, ""), field.metadata.get("note", "")))),
        )
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.init
    )
    return MethodCard(verb, name, text.split("\n\n")[0].replace("\n", " "), kind.paper, parameters)


def describe_all(verbs: Iterable[str] = VERBS) -> list[MethodCard]:
    """Return the cards of all methods of `verbs`."""
    return [describe(verb, name) for verb in verbs for name in method_names(verb)]
