"""What people look at: one self-contained HTML page from the text, tables and figures it is handed."""

from __future__ import annotations

from transship.report import figures
from transship.report.blocks import Block, Column, Figure, KeyFigure, KeyFigures, Section, Table, Text
from transship.report.page import Page, Provenance, library_versions, write_text
from transship.report.values import Spread

__all__ = [
    "Block",
    "Column",
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
    "library_versions",
    "write_text",
]
