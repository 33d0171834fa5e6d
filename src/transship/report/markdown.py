"""A page as Markdown; a figure becomes its caption and its numbers."""

from __future__ import annotations

from transship.report.blocks import Block, Facts, Figure, KeyFigures, Page, Section, Table, Text
from transship.report.values import clean

MOST_ROWS = 100  # of a figure's numbers, because nothing folds


def render(page: Page) -> str:
    """Return the page as Markdown."""
    parts = [f"# {clean(page.title)}", clean(page.summary), *map(section_text, page.visible)]
    if page.provenance is not None:
        parts += [f"### {title}\n\n{block_text(table)}" for title, table in page.provenance.tables()]
    return "\n\n".join(part for part in parts if part) + "\n"


def section_text(section: Section) -> str:
    """Return a heading and its blocks."""
    return "\n\n".join([f"## {_escaped(section.title)}", *map(block_text, section.visible)])


def block_text(block: Block) -> str:
    """Return one block."""
    match block:
        case Text():
            return _text(block)
        case KeyFigures():
            lines = [
                f"- {_escaped(figure.label)}: **{_escaped(figure.shown)}**"
                + (f" ({_escaped(figure.note)})" if figure.note else "")
                for figure in block.figures
            ]
            return "\n".join(lines)
        case Facts():
            return _table(block.table)
        case Table():
            return _table(block)
        case Figure():
            return _figure(block)


def _text(block: Text) -> str:
    """Return the paragraphs; a box becomes a quotation."""
    parts = [*([f"**{block.folded}**"] if block.folded else []), *block.paragraphs]
    body = "\n\n".join(map(_escaped, parts))
    return body if block.tone == "plain" else "\n".join(f"> {line}" for line in body.split("\n"))


def _table(table: Table) -> str:
    """Return a table with its caption above it; numbers are set right, the best in bold."""
    lines = [[_cell(head.heading) for head in table.heads]]
    lines.append(["---:" if numeric else "---" for numeric in table.numeric])
    for row in table.cells():
        lines.append([f"**{_cell(cell.text)}**" if cell.best else _cell(cell.text) for cell in row])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_escaped(table.caption)}\n\n{body}" if table.caption else body


def _figure(figure: Figure) -> str:
    """Return the caption and the numbers; of long tables (points of a cloud) only how long they are."""
    caption = f"*{_escaped(figure.caption or figure.alt)}*"
    if figure.numbers is None:
        return caption
    rows = len(figure.numbers.rows)
    if rows > MOST_ROWS:
        return f"{caption}\n\n({rows} rows of numbers: on the HTML page, below the figure.)"
    return f"{caption}\n\n{_table(figure.numbers)}"


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    return clean(text).replace("\\", "\\\\").replace("<", "&lt;")
