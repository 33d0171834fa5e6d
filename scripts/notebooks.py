"""Make notebooks from the tutorials: `python scripts/notebooks.py [FOLDER]` (`notebooks` by default).

A page stays the one source: its text becomes Markdown cells, its commands cells of bash, its files cells that
write them. Outputs are left out, because a notebook makes its own. Notebooks are built and not kept.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
FENCE = re.compile(r"^```(\w*)(.*?)\n(.*?)^```\s*$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
LINK = re.compile(r"(\[[^\]]*\])\((?!https?:)[^)]*\)")  # pages that a notebook does not lie beside


def notebook(page: str) -> dict[str, Any]:
    """Return a Markdown page as a notebook (nbformat 4.5)."""
    cells: list[dict[str, Any]] = []
    variables: list[str] = []
    at = 0
    for block in FENCE.finditer(page):
        cells += _text(page[at : block.start()])
        at = block.end()
        language, rest, body = block.groups()
        title = re.search(r'title="([^"]+)"', rest)
        if title:
            cells.append(_code(f"%%writefile {title[1]}\n{body}"))
        elif language == "console":
            commands = _commands(body)
            cells.append(_code("\n".join(["%%bash", *variables, *commands])))
            # every cell is a shell of its own
            variables += [command for command in commands if re.match(r"[A-Z]+=", command)]
        elif language == "python":
            cells.append(_code(body))
        else:
            cells += _text(block.group())
    cells += _text(page[at:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _commands(body: str) -> list[str]:
    """Return the commands of a console block, without what they print."""
    commands: list[str] = []
    going = False
    for line in body.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif going:
            commands[-1] += "\n" + line.removeprefix("> ")
        else:
            continue
        going = line.endswith("\\")
    return commands


def _text(text: str) -> list[dict[str, Any]]:
    text = LINK.sub(r"\1", COMMENT.sub("", text)).strip()
    return (
        [{"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}] if text else []
    )


def _code(text: str) -> dict[str, Any]:
    source = text.strip("\n").splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def main(folder: Path) -> None:
    """Write a notebook for each tutorial."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(TUTORIALS.glob("*.md")):
        text = json.dumps(notebook(page.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
        (folder / f"{page.stem}.ipynb").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "notebooks"))
