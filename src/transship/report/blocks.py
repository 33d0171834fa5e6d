"""What a page is made of: text, tables, figures and key figures, in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from transship.report.values import clean, column_decimals, number, plain, show

MOST_ROWS = 100  # of a figure's numbers in Markdown, where nothing folds


@dataclass(frozen=True)
class Text:
    """Paragraphs, parted by empty lines; `code` in backticks and **strong** are the only marks.

    Attributes:
        body: the text.
        tone: a plain paragraph, or a box: note, good (confirmed), warning, bad (refuted).
        folded: what stands in its place until it is opened; empty shows the text at once.
    """

    body: str
    tone: Literal["plain", "note", "good", "warning", "bad"] = "plain"
    folded: str = ""

    @property
    def paragraphs(self) -> list[str]:
        """Return the paragraphs without their empty lines."""
        return [part.strip() for part in clean(self.body).split("\n\n") if part.strip()]

    def to_markdown(self) -> str:
        """Return the paragraphs; a box becomes a quotation."""
        parts = [*([f"**{self.folded}**"] if self.folded else []), *self.paragraphs]
        body = "\n\n".join(_markdown_text(part) for part in parts)
        return body if self.tone == "plain" else "\n".join(f"> {line}" for line in body.split("\n"))


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        decimals: of every number in it; None gives the largest four digits.
        best: which value is set in bold: the largest (`max`), the smallest (`min`), or none.
        help: a sentence shown when the heading is pointed at.
        code: whether its text is set as code (paths, module names, hashes, parameters); its numbers then
            share no decimals.
    """

    name: str
    decimals: int | None = None
    best: Literal["max", "min"] | None = None
    help: str = ""
    code: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell, ready to be set: its text, what it sorts by, and whether it is its column's best."""

    text: str
    value: float | None
    best: bool


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns; numbers stand on the right and sort as numbers.

    Attributes:
        columns: headings, or `Column` for more say.
        rows: values per row: str, int, float, bool, None, `Spread`, or lists of these.
        caption: what the table shows.
        sortable: whether a click on a heading sorts.
    """

    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    sortable: bool = True

    def __post_init__(self) -> None:
        """Check that every row has one value per column."""
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {place} has {len(row)} values for {len(self.columns)} columns")

    @property
    def heads(self) -> list[Column]:
        """Return every column as a `Column`."""
        return [column if isinstance(column, Column) else Column(str(column)) for column in self.columns]

    @property
    def numeric(self) -> list[bool]:
        """Return, per column, whether it holds numbers only (apart from what is missing)."""
        return [_is_numeric([row[place] for row in self.rows]) for place in range(len(self.columns))]

    def cells(self) -> list[list[Cell]]:
        """Return the cells row by row."""
        by_column = [_cells(head, [row[place] for row in self.rows]) for place, head in enumerate(self.heads)]
        return [list(row) for row in zip(*by_column, strict=True)] if by_column else []

    def to_markdown(self) -> str:
        """Return a Markdown table with the caption above it; numbers are set right, the best in bold."""
        heads = [_markdown_cell(head.name) for head in self.heads]
        rules = ["---:" if numeric else "---" for numeric in self.numeric]
        lines = [heads, rules]
        for row in self.cells():
            texts = [_markdown_cell(cell.text) for cell in row]
            lines.append(
                [f"**{text}**" if cell.best else text for text, cell in zip(texts, row, strict=True)]
            )
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{_markdown_text(clean(self.caption))}\n\n{body}" if self.caption else body


@dataclass(frozen=True)
class KeyFigure:
    """One number that a reader should leave with.

    Attributes:
        label: what it is.
        value: the number, or a short word.
        note: a few words under it.
        tone: whether it is good news.
    """

    label: str
    value: Any
    note: str = ""
    tone: Literal["plain", "good", "warning", "bad"] = "plain"

    @property
    def shown(self) -> str:
        """Return the value as it is read."""
        return show(self.value)


@dataclass(frozen=True)
class KeyFigures:
    """Key figures side by side."""

    figures: Sequence[KeyFigure]

    def to_markdown(self) -> str:
        """Return a list of the figures."""
        lines = [
            f"- {_markdown_text(clean(figure.label))}: **{_markdown_text(figure.shown)}**"
            + (f" ({_markdown_text(clean(figure.note))})" if figure.note else "")
            for figure in self.figures
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Figure:
    """A Plotly figure as plain data; `transship.report.figures` builds the usual ones.

    Attributes:
        spec: {"data": […], "layout": {…}}; a colour may be a token (`@series-1`, `@muted`, `@sequential`, …)
            that follows light and dark. Text in it is shown as it stands, never as HTML.
        caption: what the figure shows.
        alt: the same for those who cannot see it; the caption when empty.
        height: pixels.
        width: the most pixels that it may take; None for the page's width.
        numbers: the figure's values as a table that readers can unfold.
    """

    spec: Mapping[str, Any]
    caption: str = ""
    alt: str = ""
    height: int = 420
    width: int | None = None
    numbers: Table | None = None

    def to_markdown(self) -> str:
        """Return the caption and the numbers; of long tables (points of a cloud) only how long they are."""
        caption = f"*{_markdown_text(clean(self.caption or self.alt))}*"
        if self.numbers is None:
            return caption
        rows = len(self.numbers.rows)
        if rows > MOST_ROWS:
            return f"{caption}\n\n({rows} rows of numbers: on the HTML page, below the figure.)"
        return f"{caption}\n\n{self.numbers.to_markdown()}"


Block = Text | Table | Figure | KeyFigures


@dataclass(frozen=True)
class Section:
    """A titled part of a page."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)

    def to_markdown(self) -> str:
        """Return the heading and the blocks."""
        parts = [f"## {_markdown_text(clean(self.title))}", *(block.to_markdown() for block in self.blocks)]
        return "\n\n".join(parts)


def _is_numeric(values: Sequence[Any]) -> bool:
    found = [plain(value) for value in values]
    found = [value for value in found if value is not None]
    return bool(found) and all(number(value) is not None for value in found)


def _cells(head: Column, values: Sequence[Any]) -> list[Cell]:
    # values set as code are of many kinds: a rate of 0.0002 is not 0.00 beside a factor of 40
    decimals = column_decimals(values) if head.decimals is None and not head.code else head.decimals
    numbers = [number(value) for value in values]
    known = [value for value in numbers if value is not None and value == value]
    choose = {"max": max, "min": min}.get(head.best or "")
    best = choose(known) if choose is not None and len(known) > 1 else None
    grouped = any(isinstance(plain(value), int) and abs(plain(value)) >= 10_000 for value in values)
    return [
        Cell(show(value, decimals, grouped=grouped), key, best is not None and key == best)
        for value, key in zip(values, numbers, strict=True)
    ]


def _markdown_cell(text: str) -> str:
    return _markdown_text(clean(text)).replace("|", "\\|").replace("\n", " ")


def _markdown_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("<", "&lt;")
