"""A page as one HTML document: self-contained, nothing fetched, written whole or not at all."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from transship import __version__
from transship.atomic import write_text
from transship.report.blocks import Page, Text
from transship.report.values import clean, script_json, show

_LIBRARIES = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "safetensors", "pyarrow")
_MARKS = re.compile(r"`([^`\n]+)`|\*\*([^*`\n]+)\*\*")
_CONTENTS_FROM = 4  # sections from which a list of contents is worth its place


def render(page: Page) -> str:
    """Return the page as one HTML document. The same page gives the same bytes."""
    library = _plotly() if page.figures else None
    code = _asset("page.js")
    hashes = [_script_hash(code), *([library.hash] if library else [])]
    document: str = (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            summary=Text(page.summary),
            style=_asset("page.css"),
            code=code,
            library=library.packed if library else None,
            policy=_policy(hashes),
            contents=len(page.visible) >= _CONTENTS_FROM,
        )
    )
    return document


def write(page: Page, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the page beside `path` and rename it into place; an existing file needs `force`."""
    return write_text(path, render(page), force=force)


def library_versions() -> dict[str, str]:
    """Return the versions of transship, Python and the libraries it works with; imports none of them."""
    versions = {"transship": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True)
class _Library:
    """Plotly's bundle of cartesian charts: gzip in base64 (0.66 MB, where all take 2), and the hash that the
    browser checks it against.
    """

    packed: str
    hash: str


@cache
def _plotly() -> _Library:
    # plotly.js-cartesian-dist-min 4.1.1 of npm, under the licence beside it
    packed = _templates().joinpath("plotly-cartesian.min.js.gz").read_bytes()
    return _Library(base64.b64encode(packed).decode(), _script_hash(gzip.decompress(packed).decode()))


def _script_hash(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def _policy(hashes: Sequence[str]) -> str:
    """Return a content policy under which only our own scripts run and nothing is fetched."""
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    text: str = _templates().joinpath(name).read_text(encoding="utf-8")
    return text.strip()


def _templates() -> Any:
    return resources.files("transship.report").joinpath("templates")


@cache
def _environment() -> Any:
    import jinja2  # start-up

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    environment.filters |= {"inline": _inline, "script_json": _script_json, "show": show, "kind": _kind}
    return environment


def _printable(value: object) -> object:
    """Clean what the template prints, value by value; markup (the library among it) is clean already."""
    return clean(value) if type(value) is str else value


def _kind(block: object) -> str:
    return type(block).__name__


def _script_json(value: Any) -> Any:
    from markupsafe import Markup  # start-up

    return Markup(script_json(value))


def _inline(text: object) -> Any:
    """Return text as HTML: all escaped, then `code` and **strong** set."""
    from markupsafe import Markup, escape  # start-up

    safe = str(escape(clean(text)))
    return Markup(_MARKS.sub(_marked, safe))


def _marked(match: re.Match[str]) -> str:
    code, strong = match.groups()
    return f"<code>{code}</code>" if code is not None else f"<strong>{strong}</strong>"
