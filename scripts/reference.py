"""Write the reference pages from the program itself: `python scripts/reference.py docs/reference`.

`commands.md` is every command's own `--help`, `methods.md` the table of methods; a test fails while
`docs/reference` differs from what this script writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from transship import registry
from transship.cli import group

WIDTH = 100


def commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each command below `command` with its path and its help."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH, "terminal_width": WIDTH}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield tuple(context.command_path.split()), command.get_help(context)
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            assert child is not None
            yield from commands(child, child_name, context)


def commands_page() -> str:
    """Return the page of all commands."""
    parts = ["# Commands\n\nWhat each command prints for `--help`.\n"]
    for names, text in commands(group, "transship"):
        level = "#" * min(len(names) + 1, 4)
        parts.append(f"{level} {' '.join(names)}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def methods_page() -> str:
    """Return the page of all methods."""
    parts = ["# Methods\n\nWhat `transship methods` lists: one file each, whose fields are the parameters.\n"]
    for verb in registry.VERBS:
        cards = registry.describe_all([verb])
        if cards:
            parts.append(f"## {verb}\n")
        for card in cards:
            parts.append(f"### {card.verb}: {card.name}\n\n{card.summary}\n")
            if card.paper:
                parts.append(f"*{card.paper}*\n")
            if card.parameters:
                rows = [
                    f"| `{p.name}` | {_cell(p.type)} | `{p.default}` | {_cell(p.help)} |"
                    for p in card.parameters
                ]
                parts.append(
                    "\n".join(["| parameter | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n"
                )
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {"commands.md": commands_page, "methods.md": methods_page}


def main(folder: Path) -> None:
    """Write all pages into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
