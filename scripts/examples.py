"""Run the examples of Markdown pages: `python scripts/examples.py [--write | --spread] README.md …`.

Three kinds of fenced blocks count, in the order of the page:

- `console`: lines that begin with `$ ` are run by bash; the lines below a command are what it prints;
- a block with `title="name"` is written into the folder as a file of that name;
- `python` without a title is run.

`sh` blocks and all others are only shown. What a command prints is compared with the page: words exactly, `…`
for anything left out, numbers as `agree` says; `<!-- exact -->` before a block asks for equal numbers too.
Lines of progress are not compared and do not belong on a page.
With `--write` the page is changed to what was printed, where the two differ. With `--spread` the page runs
with every set of kernels in `scripts/kernels.py`, and the largest differences between them are printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
TIMED = re.compile(r"\s*(?:CPU )?(?:s|ms|min|seconds|minutes)\b")
FENCE = re.compile(r"^```(\w+)?(.*)$")
# Percent points by which a share may differ: processors round differently, and training carries that on. It
# is a third more than the largest difference that was seen: 9 between two kinds of machine, 7 between sets of
# kernels on one of them (`--spread` measures it anew)
POINTS = 12.0
SHARE = 0.15  # by which any other broken number may differ, relatively
LEFT_OUT = "…"
# how far work has come is said every few seconds: how often depends on the machine
PROGRESS = re.compile(r".+: \d+ of \d+( \w+)?( \(\d+ kept from before\))?, .*(s|min)( left)?")


@dataclass
class Command:
    """One command of a page: what to run, what it should print, and where that stands in the page's lines."""

    text: str
    expected: list[str]
    first: int
    exact: bool = False
    printed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class File:
    """A file that the page shows."""

    name: str
    text: str


def steps(page: str) -> Iterator[Command | File]:
    """Yield what a page runs and writes, in its order."""
    lines, at = page.split("\n"), 0
    while at < len(lines):
        opened = FENCE.match(lines[at])
        at += 1
        if not opened:
            continue
        end = next(place for place in range(at, len(lines)) if lines[place].rstrip() == "```")
        language, rest = opened[1] or "", opened[2]
        title = re.search(r'title="([^"]+)"', rest)
        exact = at >= 2 and lines[at - 2].strip() == "<!-- exact -->"
        if title:
            yield File(title[1], "\n".join([*lines[at:end], ""]))
        elif language == "console":
            yield from _commands(lines, at, end, exact)
        elif language == "python":
            yield Command("python - <<'END'\n" + "\n".join(lines[at:end]) + "\nEND", [LEFT_OUT], end)
        at = end + 1


def _commands(lines: list[str], at: int, end: int, exact: bool) -> Iterator[Command]:
    while at < end:
        if not lines[at].startswith("$ "):
            raise ValueError(f"line {at + 1}: a console block begins with a command, `$ …`")
        text = [lines[at][2:]]
        while text[-1].endswith("\\"):
            at += 1
            text.append(lines[at].removeprefix("> "))
        at += 1
        first = at
        while at < end and not lines[at].startswith("$ "):
            at += 1
        yield Command("\n".join(text), lines[first:at], first, exact)


def run(command: Command, folder: Path, before: str = "") -> int:
    """Run a command as a user would, keep what it printed, and return its exit code.

    `before` sets the shell's variables.
    """
    here = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "110",
        "PYTHONWARNINGS": "default",
        "TOKENIZERS_PARALLELISM": "false",
    }
    text = before + re.sub(r"^make demo\b", "transship demo demo", command.text)  # what the Makefile runs
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = [line.rstrip() for line in done.stdout.rstrip("\n").split("\n")] if done.stdout else []
    command.printed = [line for line in printed if not PROGRESS.fullmatch(line)]
    return done.returncode


def agree(expected: list[str], printed: list[str], *, exact: bool = False) -> bool:
    """Say whether printed lines are those of the page; a line `…` stands for any number of lines."""
    if not expected:
        return not printed
    if expected[0].strip() == LEFT_OUT:
        return any(agree(expected[1:], printed[skip:], exact=exact) for skip in range(len(printed), -1, -1))
    return (
        bool(printed)
        and line_agrees(expected[0], printed[0], exact=exact)
        and agree(expected[1:], printed[1:], exact=exact)
    )


def line_agrees(expected: str, printed: str, *, exact: bool = False) -> bool:
    """Compare two lines: words exactly, numbers by their kind.

    Whole numbers are equal; shares in percent differ by at most `POINTS`, other broken numbers by `SHARE` of
    their size or 0.06, and times are not compared. A word with `…` in it stands for any words.
    """
    if LEFT_OUT in expected:
        words, given = expected.split(), printed.split()
        hole = next(place for place, word in enumerate(words) if LEFT_OUT in word)
        before, after = words[:hole], words[hole + 1 :]
        if len(given) < len(before) + len(after):
            return False
        parts = (before, given[:hole]), (after, given[len(given) - len(after) :])
        return all(line_agrees(" ".join(first), " ".join(two), exact=exact) for first, two in parts)
    if exact:
        return expected.rstrip() == printed.rstrip()
    if _words(expected) != _words(printed):
        return False
    pairs = zip(NUMBER.finditer(expected), NUMBER.finditer(printed), strict=True)
    return all(_close(first, other) for first, other in pairs)


def _words(line: str) -> list[str]:
    return NUMBER.sub("#", line).split()


def _close(expected: re.Match[str], printed: re.Match[str]) -> bool:
    rest = expected.string[expected.end() :]
    if TIMED.match(rest):
        return True
    first, other = (float(match[0].replace(",", "").replace("−", "-")) for match in (expected, printed))
    if rest.lstrip().startswith("%"):
        return abs(first - other) <= POINTS
    if "." in expected[0] or "e" in expected[0]:
        return abs(first - other) <= max(SHARE * abs(first), 0.06)
    return first == other


def differences(one: list[str], other: list[str]) -> dict[str, float]:
    """Return by how much numbers differ at most: shares in percent points, others by a part of their size."""
    largest = {"points": 0.0, "share": 0.0}
    for first, second in zip(one, other, strict=False):
        if _words(first) != _words(second):
            continue
        for left, right in zip(NUMBER.finditer(first), NUMBER.finditer(second), strict=True):
            rest = first[left.end() :]
            if TIMED.match(rest) or "." not in left[0]:
                continue
            values = [float(match[0].replace(",", "").replace("−", "-")) for match in (left, right)]
            apart = abs(values[0] - values[1])
            if rest.lstrip().startswith("%"):
                largest["points"] = max(largest["points"], apart)
            elif apart > 0.06:
                largest["share"] = max(largest["share"], apart / abs(values[0]))
    return largest


def follow(page: str, folder: Path) -> Iterator[tuple[Command, int]]:
    """Carry out a page's steps in a folder; yield every command with its exit code.

    Variables (`NAME=…` as a command) stay set for the commands below them.
    """
    variables = ""
    for step in steps(page):
        if isinstance(step, File):
            file = folder / step.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step.text, encoding="utf-8")
            continue
        yield step, run(step, folder, variables)
        if re.match(r"[A-Z]+=", step.text):
            variables += step.text + "\n"


def main() -> None:
    """Run pages, and print or write what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="change the page to what was printed")
    parser.add_argument("--spread", action="store_true", help="print how far sets of kernels lie apart")
    parser.add_argument("--folder", type=Path, help="where to run them; a new folder by default")
    arguments = parser.parse_args()
    wrong = 0
    for page in arguments.page:
        if arguments.spread:
            _spread(page)
            continue
        with tempfile.TemporaryDirectory() as new:
            folder = arguments.folder or Path(new)
            folder.mkdir(parents=True, exist_ok=True)
            wrong += _check(page, folder, arguments.write)
    sys.exit(f"{wrong} commands differ from their pages" if wrong else 0)


def _spread(page: Path) -> None:
    import kernels  # beside this script

    printed: dict[str, list[Command]] = {}
    before = dict(os.environ)
    for name, chosen in kernels.SETS.items():
        variables = kernels.environment(chosen)
        if variables is None:
            print(f"{name}: skipped, this processor cannot run it", flush=True)
            continue
        os.environ.update(variables)
        with tempfile.TemporaryDirectory() as folder:
            printed[name] = [command for command, _ in follow(page.read_text(encoding="utf-8"), Path(folder))]
        os.environ.clear()
        os.environ.update(before)
        print(f"{name}: done", flush=True)
    names = list(printed)
    for commands in zip(*printed.values(), strict=True):
        for place, first in enumerate(commands):
            for second in range(place + 1, len(commands)):
                apart = differences(first.printed, commands[second].printed)
                if max(apart.values()):
                    both = f"{names[place]} and {names[second]}"
                    print(
                        f"{apart['points']:5.1f} points, {apart['share']:4.0%}: {both}, $ {first.text[:60]}"
                    )


def _check(page: Path, folder: Path, write: bool) -> int:
    text = page.read_text(encoding="utf-8")
    differing = []
    for command, code in follow(text, folder):
        same = code == 0 and agree(command.expected, command.printed, exact=command.exact)
        print(f"{'  ' if same else '≠ '}$ {command.text}" + (f" [exit {code}]" if code else ""), flush=True)
        if not same:
            differing.append(command)
            print("\n".join(command.printed), flush=True)
    if write and differing:
        lines = text.split("\n")
        for command in reversed(differing):
            lines[command.first : command.first + len(command.expected)] = command.printed
        page.write_text("\n".join(lines), encoding="utf-8")
    return len(differing)


if __name__ == "__main__":
    main()
