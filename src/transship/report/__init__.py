"""What people look at: a result as blocks, on a terminal, as JSON, as Markdown or as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.report import figures, html, json, markdown, terminal
    from transship.report.blocks import (
        Block,
        Column,
        Facts,
        Figure,
        KeyFigure,
        KeyFigures,
        Page,
        Provenance,
        Section,
        Table,
        Text,
    )
    from transship.report.html import library_versions
    from transship.report.values import Spread, short_name
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "Block",
    "Column",
    "Facts",
    "Figure",
    "KeyFigure",
    "KeyFigures",
    "Page",
    "Provenance",
    "Section",
    "Spread",
    "Table",
    "Text",
    "figures",
    "html",
    "json",
    "library_versions",
    "markdown",
    "short_name",
    "terminal",
]
