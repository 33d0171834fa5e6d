"""The door of a room: a package whose public names are imported when they are first used (PEP 562).

A door is written once, for people, type checkers and Python alike:

    if TYPE_CHECKING:
        from transship.report.blocks import Page, Table
    else:
        __getattr__, __dir__ = door(__name__)

    __all__ = ["Page", "Table"]

Type checkers read the imports. At run time `door` reads the same lines to learn where each name is at home.
So a command imports rooms at its top, and pays for torch or numpy only when it uses a name that needs them.
No public name may be called like a module of the room, unless it is that module: once the module is imported,
it stands under its own name.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that is being imported."""
    homes = read_door(Path(str(sys.modules[package].__file__)))

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if home in (package, f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(home), name)

    def listed() -> list[str]:
        return sorted({*homes, *vars(sys.modules[package]).get("__all__", ())})

    return find, listed


def read_door(file: Path) -> dict[str, str]:
    """Return public name → the module it comes from, as the file's imports for type checkers say."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in _test(node)]
    imports = [line for block in blocks for line in block if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in imports for alias in line.names}


def _test(node: ast.If) -> str:
    return node.test.id if isinstance(node.test, ast.Name) else ""
