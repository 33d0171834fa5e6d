"""A page as a JSON document: every fact, and every block that has a key."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from transship.errors import CONTROLS
from transship.report.blocks import Block, Facts, Figure, KeyFigures, Page, Table, Text
from transship.report.values import plain


def render(page: Page) -> str:
    """Return the page as indented JSON."""
    return dumps(document(page))


def dumps(value: Any) -> str:
    """Return any value as indented JSON; a number that is not finite becomes null."""
    text = json.dumps(_carried(value), indent=2, ensure_ascii=False)
    return CONTROLS.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)  # those that JSON leaves as they are


def document(page: Page) -> dict[str, Any]:
    """Return the document; two blocks of one key are a mistake of the page."""
    entries: dict[str, Any] = {}
    for section in page.sections:
        for block in section.blocks:
            for key, value in _entries(block):
                if key in entries:
                    raise ValueError(f"two blocks of the page '{page.title}' have the key '{key}'")
                entries[key] = value
    return entries


def _entries(block: Block) -> Iterator[tuple[str, Any]]:
    match block:
        case Facts():
            if block.in_json:
                yield from [(block.key, block.entries)] if block.key else block.entries.items()
        case KeyFigures():
            yield from ((figure.key, figure.value) for figure in block.figures if figure.key)
        case Table():
            if block.key:
                keys = [head.key or head.name for head in block.heads]
                yield block.key, [dict(zip(keys, row, strict=True)) for row in block.rows]
        case Text():
            if block.key:
                yield block.key, block.body
        case Figure():
            return


def _carried(value: Any) -> Any:
    value = plain(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _carried(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _carried(part) for name, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_carried(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, PurePath) else value
