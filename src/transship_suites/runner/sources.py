"""Fingerprints of source text: comments, docstrings and layout do not count, everything else does."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIBRARY, SUITES = PACKAGES = ("transship", "transship_suites")
SOURCES = Path(__file__).parent.parent.parent
# a paper: its figures are shown beside ours, and what cases read of it is in the options
_SHOWN = {"paper.toml"}
# they arrange and show numbers that are measured elsewhere
_WITHOUT_EFFECT = (f"{LIBRARY}/cli", f"{LIBRARY}/report", f"{SUITES}/runner")


@functools.cache  # the file may be edited while a long run that loaded it goes on
def code_fingerprint(*pieces: Callable[..., Any] | type) -> str:
    """Return the hash of the source of some functions or classes, as it was when first asked for."""
    texts = [_normal(ast.parse(textwrap.dedent(inspect.getsource(piece)))) for piece in pieces]
    return hashlib.sha256("\x1e".join(texts).encode()).hexdigest()


def suite_fingerprint(file: Path) -> str:
    """Return the hash of a suite's file and of all rooms of transship that it imports, directly or not.

    A room counts as a whole (`geometry/`, `verbs/merge/`), because methods are found by listing folders. A
    plain `import transship` counts as every room.
    """
    seen: set[str] = set()
    waiting = sorted(_rooms(file))
    while waiting:
        room = waiting.pop()
        if room not in seen:
            seen.add(room)
            waiting += [other for source in _files(room) for other in _rooms(source)]
    digest = hashlib.sha256(_normal_file(file).encode())
    for room in sorted(seen):
        for source in _files(room):
            digest.update(f"\x1e{source.relative_to(SOURCES).as_posix()}\x1f{_normal_file(source)}".encode())
    return digest.hexdigest()


def _files(room: str) -> list[Path]:
    """Return the Python and table files of a room, which is a folder or a single module of a package."""
    folder = SOURCES / room
    if folder.is_dir():
        files = sorted(file for file in folder.rglob("*") if file.suffix in {".py", ".toml", ".json"})
        return [file for file in files if file.name not in _SHOWN]
    return [file for file in (folder.with_suffix(".py"), folder.with_suffix(".toml")) if file.is_file()]


def _rooms(file: Path) -> frozenset[str]:
    """Return the rooms that a file imports, also inside functions, and those of `MeasuredBy`."""
    if file.suffix != ".py":
        return frozenset()
    rooms: set[str] = set()
    for module in _read(_text(file))[0]:
        rooms |= _room(module.split("."))
    return frozenset(room for room in rooms if room not in _WITHOUT_EFFECT)


@functools.cache  # suites share most rooms, and a syntax tree takes longer than its file
def _read(source: str) -> tuple[frozenset[str], str]:
    """Return the modules of transship that a source imports, and its syntax tree as text."""
    tree = ast.parse(source)
    return frozenset(_imported(tree)), _normal(tree)


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in {LIBRARY, SUITES})
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] in {LIBRARY, SUITES}
        ):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Constant) and str(node.value).startswith(f"{SUITES}."):
            yield str(node.value).partition(":")[0]


def _room(parts: list[str]) -> set[str]:
    """Return the folder or module that a name of either package is from.

    Verbs lie one deeper than rooms, and so do the suites' materials, each of which stands for itself.
    """
    depth = 3 if parts[1:2] in (["verbs"], ["materials"]) and len(parts) > 2 else 2
    room = "/".join(parts[:depth])
    if len(parts) > 1 and ((SOURCES / room).is_dir() or (SOURCES / f"{room}.py").is_file()):
        return {room}
    # a public name such as `from transship import compare` comes from some room
    return _all_rooms() if parts[0] == LIBRARY and depth == 2 else set()


def _all_rooms() -> set[str]:
    package = SOURCES / LIBRARY
    folders = [path for path in package.iterdir() if path.is_dir() and (path / "__init__.py").is_file()]
    rooms = {f"{LIBRARY}/{path.name}" for path in folders if path.name != "verbs"}
    verbs = {f"{LIBRARY}/verbs/{path.name}" for path in (package / "verbs").iterdir() if path.is_dir()}
    return rooms | verbs | {f"{LIBRARY}/{path.stem}" for path in package.glob("[a-z]*.py")}


def _normal_file(file: Path) -> str:
    return _read(_text(file))[1] if file.suffix == ".py" else _text(file)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _normal(tree: ast.AST) -> str:
    """Return a syntax tree as text, without docstrings; these leave the tree as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return ast.dump(tree)
