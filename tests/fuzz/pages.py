"""Report pages with names from outside, opened in headless Chromium: nothing of a name may run or ask."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]
BETWEEN = "\x1e"  # names of one page
NAMES = [
    '</script><img src=x onerror="window.hacked=1">',
    "<svg/onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{ 7 * 7 }}${window.hacked=1}`",
    "<!--</style><link rel=stylesheet href=http://example.org/x.css>",
    "%{customdata}<br><a href=http://example.org>x</a>",
    "plain name",
]


def chromium() -> str | None:
    """Return where the browser is, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@functools.cache
def _browser() -> Any:
    from playwright.sync_api import sync_playwright

    return sync_playwright().start().chromium.launch(executable_path=chromium(), args=FLAGS)


def named(names: Sequence[str]) -> Any:
    """Return a page on which everything that may come from outside is called so."""
    from transship.report import (
        Column,
        Facts,
        KeyFigure,
        KeyFigures,
        Page,
        Provenance,
        Section,
        Table,
        Text,
        figures,
    )

    first = names[0]
    columns = [first, Column(f"code {first}", code=True), Column(f"unit {first}", 2, unit=first[:20])]
    blocks = [
        KeyFigures([KeyFigure(name, 1.5, name) for name in names]),
        Facts({name: name for name in names}),
        *(Text(f"Words of {name}", folded=name, tone="warning") for name in names),
        Table(columns, [[name, name, 0.5] for name in names], caption=first),
        figures.bars(
            list(names), {f"series {first}": [0.5] * len(names)}, label_title=first, value_title=first
        ),
    ]
    known = Provenance(first, {name: name for name in names}, {name: name for name in names})
    return Page(first, first, [Section(first, blocks)], known)


def check_page(data: bytes, folder: Path, browser: Any = None) -> None:
    """Open a page whose names are the parts of a text, and see that it is quiet and asks for nothing."""
    from transship.report import html, json, markdown, terminal

    names = dict.fromkeys(data.decode("utf-8", "surrogateescape").split(BETWEEN))
    page = named(list(names))
    for render in (terminal.render, json.render, markdown.render):
        render(page).encode("utf-8", "surrogatepass")
    file = html.write(page, folder / "page.html", force=True)
    entries: list[str] = []
    tab = (browser or _browser()).new_page()
    try:
        tab.on("console", lambda message: entries.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: entries.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: entries.append(f"dialog: {dialog.message}"))
        tab.on(
            "request", lambda request: entries.append(request.url) if request.url != file.as_uri() else None
        )
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-figures=drawn]", timeout=60_000)
        hacked = tab.evaluate("[window.hacked, document.querySelectorAll('[onerror], [onload]').length]")
        strange = tab.evaluate(
            "document.querySelectorAll('a[href^=\"javascript\"], link[href^=http]').length"
        )
    finally:
        tab.close()
    if entries or hacked != [None, 0] or strange:
        raise AssertionError(f"the page does what a name says: {entries[:3]} {hacked} {strange}")
