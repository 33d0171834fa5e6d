"""Print the walk of a command: the rooms and files of transship that it enters.

    python scripts/walk.py transport base-a tuned-a base-b out --data reviews.parquet

A file is entered when one of its functions or methods begins to run. What does not count: files that are
only imported, functions that run while a module is being imported (decorators, tables), bodies of classes,
lambdas, comprehensions and generator expressions, code that `dataclass` writes, and work in other processes.
Functions in other threads of this process do count. What the command prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
PACKAGES = ("transship", "transship_suites")


class Walk:
    """Counts the functions of our files that begin to run, outside of imports.

    Attributes:
        entered: file below `SOURCE` → the names of its functions that ran.
    """

    def __init__(self, source: Path = SOURCE) -> None:
        self.entered: dict[str, set[str]] = defaultdict(set)
        self._source = source.resolve()
        self._kinds: dict[CodeType, str] = {}
        self._importing = threading.local()

    def __enter__(self) -> Walk:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        kind = self._kinds.get(frame.f_code)
        if kind is None:
            kind = self._kinds[frame.f_code] = self._kind(frame.f_code)
        if kind == "module":
            depth = getattr(self._importing, "depth", 0)
            self._importing.depth = max(0, depth + (1 if event == "call" else -1))
        elif kind and event == "call" and not getattr(self._importing, "depth", 0):
            self.entered[kind].add(frame.f_code.co_qualname)

    def _kind(self, code: CodeType) -> str:
        """Return `module`, the file of one of our functions, or nothing."""
        file = Path(code.co_filename)
        if not file.is_absolute() or not file.is_relative_to(self._source):
            return ""
        if code.co_name == "<module>":
            return "module"
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        return file.relative_to(self._source).as_posix() if function else ""


def walk(action: Callable[[], Any]) -> dict[str, set[str]]:
    """Return file → functions that `action` enters; it may end by `sys.exit`."""
    with Walk() as steps, contextlib.suppress(SystemExit):
        action()
    return dict(steps.entered)


def room(file: str) -> str:
    """Return the room of a file: a package below transship, or a verb with its own rooms."""
    parts = file.split("/")[:-1]
    return ".".join(parts[:4] if parts[1:2] == ["verbs"] else parts[:2])


def main(arguments: list[str]) -> None:
    """Run one command line and print its walk."""
    from transship.cli import main as command

    with contextlib.redirect_stdout(sys.stderr):
        entered = walk(lambda: command(arguments))
    entered = {file: names for file, names in entered.items() if file.split("/")[0] in PACKAGES}
    rooms = Counter(map(room, entered))
    print(f"{len(entered)} files of {len(rooms)} rooms: transship {' '.join(arguments[:2])}")
    for name in sorted(rooms):
        print(f"\n{name} ({rooms[name]})")
        for file in sorted(entered):
            if room(file) == name:
                print(f"  {file.rsplit('/', 1)[1]:28}{len(entered[file]):4} functions")


if __name__ == "__main__":
    main(sys.argv[1:])
