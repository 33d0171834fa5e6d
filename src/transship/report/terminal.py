"""A page on a terminal: what a reader should leave with, in lines and aligned columns.

Figures, folded text and sections of detail stay on the page that `--report` writes. Whatever comes from
outside has its control characters escaped here; the bold of a heading is the only control that remains.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from transship.errors import printable
from transship.report.blocks import Block, Facts, KeyFigures, Page, Table, Text
from transship.report.values import show

MOST_ROWS = 40
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def render(page: Page) -> str:
    """Return the page as lines; whoever prints it leaves out the bold where there is no terminal."""
    parts = [] if not page.title else [_bold(page.title)]
    parts += [] if not page.summary else [_marked(page.summary)]
    for section in page.visible:
        blocks = [] if section.detail else [text for block in section.visible if (text := block_text(block))]
        if blocks and section.title:
            parts.append("\n" + _bold(section.title))
        parts += blocks
    return "\n".join(parts).lstrip("\n")


def block_text(block: Block) -> str:
    """Return one block as lines, empty where a terminal has nothing to show of it."""
    match block:
        case Text():
            mark = "" if block.tone == "plain" else f"{_TONES[block.tone]}: "
            return "" if block.folded else mark + "\n".join(map(_marked, block.paragraphs))
        case KeyFigures():
            rows = [[figure.label, figure.shown, figure.note] for figure in block.figures]
            return "\n".join(_aligned(rows, [False, True, False]))
        case Facts():
            entries = [(printable(name), printable(show(value))) for name, value in block.table.rows]
            return "\n".join(f"{name}: {value}" for name, value in entries)
        case Table():
            return "\n".join(_table(block))
        case _:
            return ""


_TONES = {"note": "note", "good": "confirmed", "warning": "warning", "bad": "refuted"}


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield _marked(table.caption)
    cells = table.cells()
    most = len(cells) if table.whole else MOST_ROWS
    rows = [[cell.text for cell in row] for row in cells[:most]]
    lines = _aligned([[head.heading for head in table.heads], *rows], table.numeric)
    yield _bold(next(lines), escaped=True)
    yield from lines
    if len(cells) > most:
        yield f"… and {len(cells) - most} more rows, listed in --json and --report"


def _aligned(rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> Iterator[str]:
    """Yield rows with their columns under one another: text to the left, numbers to the right."""
    texts = [[printable(text).replace("\n", " ") for text in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        padded = [
            " " * (width - _width(text)) + text if right else text + " " * (width - _width(text))
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        for sign in text
    )


def _marked(text: str) -> str:
    return printable(text).replace("**", "")


def _bold(text: str, *, escaped: bool = False) -> str:
    return f"{_BOLD}{text if escaped else printable(text)}{_PLAIN}"
