"""Commands and code that pages only show: the parser takes them, and their names exist.

`console` blocks run as they are (README, tutorials, suites, the command line). Blocks of `sh`, `bash` and
`python` name models and data of the reader's, so that they cannot run here.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import transship as ts
from transship.cli import group

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```(sh|bash|python)([^\n]*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = [
    (page, language, text)
    for page in PAGES
    for _, language, rest, text in BLOCK.findall(page.read_text(encoding="utf-8"))
    if "title=" not in rest
]


def name(block: tuple[Path, str, str]) -> str:
    page, _, text = block
    return f"{page.relative_to(ROOT)}: {text.strip().splitlines()[0][:50]}"


def commands(text: str) -> list[list[str]]:
    """Return the words of every `transship` command in lines of shell."""
    entries = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = words[: next((at for at, word in enumerate(words) if word in ("|", ">", "&&")), None)]
        if "transship" in words[:-1]:
            entries.append(words[words.index("transship") + 1 :])
    return entries


def parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parser take the words; what they name need not be here."""
    command: Any = group
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(click.Context(command), words[0])
        assert child is not None, f"there is no command {words[0]}"
        command, words = child, words[1:]
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)
    if not {"--help", "--version"} & set(words):
        command.make_context(command.name, list(words))


def test_commands_are_found_in_lines_of_shell():
    text = "# transship no\naccelerate launch -m transship a b \\\n  --c   # why\nls | transship d > e\n"
    assert commands(text) == [["a", "b", "--c"]]


@pytest.mark.parametrize("block", [block for block in SHOWN if block[1] != "python"], ids=name)
def test_commands_that_are_only_shown_are_taken_by_the_parser(block, monkeypatch: pytest.MonkeyPatch):
    for words in commands(block[2]):
        parse(words, monkeypatch)


@pytest.mark.parametrize("block", [block for block in SHOWN if block[1] == "python"], ids=name)
def test_names_of_shown_code_exist(block):
    for node in ast.walk(ast.parse(block[2])):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("transship"):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ts":
            assert hasattr(ts, node.attr)
