"""What a result is told by: text, tables, figures, key figures and facts, in the sections of a page.

A verb says what it has to say once, as a `Page`. The renderers beside this module show it on a terminal
(`terminal`), as JSON (`json`), as Markdown (`markdown`) and as one HTML file (`html`). What has a `key` is
part of the JSON document under that key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from transship.report.values import clean, column_decimals, number, plain, show


@dataclass(frozen=True)
class Text:
    """Paragraphs, parted by empty lines; `code` in backticks and **strong** are the only marks.

    Attributes:
        body: the text.
        tone: a plain paragraph, or a box: note, good (confirmed), warning, bad (refuted).
        folded: what stands in its place until it is opened; empty shows the text at once.
        key: its name in JSON.
    """

    body: str
    tone: Literal["plain", "note", "good", "warning", "bad"] = "plain"
    folded: str = ""
    key: str = ""

    @property
    def paragraphs(self) -> list[str]:
        """Return the paragraphs without their empty lines."""
        return [part.strip() for part in clean(self.body).split("\n\n") if part.strip()]


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
        unit: of its numbers, set beside the heading.
        key: its name in JSON; the heading when empty.
    """

    name: str
    decimals: int | None = None
    best: Literal["max", "min"] | None = None
    help: str = ""
    code: bool = False
    unit: str = ""
    key: str = ""

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


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
        whole: whether a terminal shows all rows, however many there are.
        key: its name in JSON, where it is a list of rows by column.
    """

    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    sortable: bool = True
    whole: bool = False
    key: str = ""

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
        by_column = [_cells(head, [row[place] for row in self.rows]) for place, head in enumerate(self.heads)]
        return [list(row) for row in zip(*by_column, strict=True)] if by_column else []


@dataclass(frozen=True)
class KeyFigure:
    """One number that a reader should leave with.

    Attributes:
        label: what it is.
        value: the number, or a short word.
        note: a few words under it.
        tone: whether it is good news.
        key: its name in JSON.
    """

    label: str
    value: Any
    note: str = ""
    tone: Literal["plain", "good", "warning", "bad"] = "plain"
    key: str = ""

    @property
    def shown(self) -> str:
        return show(self.value)


@dataclass(frozen=True)
class KeyFigures:
    """Key figures side by side."""

    figures: Sequence[KeyFigure]


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


@dataclass(frozen=True)
class Facts:
    """Named values: lines on a terminal, a table on a page, entries of the JSON document.

    Attributes:
        entries: name → value; in JSON any value that it can carry.
        shown: whether people see them; otherwise they are in JSON alone.
        in_json: whether programs see them; otherwise they are for people alone.
        key: the name of the whole in JSON; empty makes every entry one of the document's own.
    """

    entries: Mapping[str, Any]
    shown: bool = True
    in_json: bool = True
    key: str = ""

    @property
    def table(self) -> Table:
        rows = [[name.replace("_", " "), value] for name, value in _flat(self.entries)]
        return Table(["fact", Column("value", code=True)], rows, sortable=False)


Block = Text | Table | Figure | KeyFigures | Facts


@dataclass(frozen=True)
class Section:
    """A titled part of a page.

    Attributes:
        title: its heading.
        blocks: what it holds.
        detail: whether it is left out on a terminal, which only shows what a reader should leave with.
    """

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)
    detail: bool = False

    @property
    def visible(self) -> list[Block]:
        """Return the blocks without those that are in JSON alone."""
        return [block for block in self.blocks if not isinstance(block, Facts) or block.shown]


@dataclass(frozen=True)
class Provenance:
    """Where the page's numbers come from.

    Attributes:
        command: the command line or call that made them.
        inputs: name → content hash (or any short description) of each model and data set.
        parameters: name → value.
        versions: library → version; `library_versions()` reads those installed.
        notes: anything else, name → value.
    """

    command: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def tables(self) -> list[tuple[str, Table]]:
        """Return the parts that are not empty, each as a titled table."""
        parts = [
            ("Inputs", "input", "content", self.inputs),
            ("Parameters", "parameter", "value", self.parameters),
            ("Versions", "library", "version", self.versions),
            ("Notes", "note", "value", self.notes),
        ]
        return [
            (title, Table([name, Column(value, code=True)], _flat(entries), sortable=False))
            for title, name, value, entries in parts
            if entries
        ]


@dataclass(frozen=True)
class Page:
    """What a result says, for all renderers.

    Attributes:
        title: what it is about.
        summary: what was found, in a sentence or two.
        sections: the parts, in order.
        provenance: folded at the end.
    """

    title: str
    summary: str = ""
    sections: Sequence[Section] = ()
    provenance: Provenance | None = None

    @property
    def visible(self) -> list[Section]:
        """Return the sections that hold anything for people, or were empty from the start."""
        return [section for section in self.sections if section.visible or not section.blocks]

    @property
    def figures(self) -> list[Figure]:
        """Return the figures in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def _flat(entries: Mapping[str, Any], prefix: str = "") -> list[list[Any]]:
    """Return nested entries as rows of [dotted name, value]."""
    rows: list[list[Any]] = []
    for name, value in entries.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append([f"{prefix}{name}", value if not isinstance(value, Mapping) else "–"])
    return rows


def _is_numeric(values: Sequence[Any]) -> bool:
    present = [value for value in map(plain, values) if value is not None]
    return bool(present) and all(number(value) is not None for value in present)


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
