"""One page from what it is handed: self-contained, nothing fetched, written whole or not at all."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from transship.errors import OutputError
from transship.report.blocks import Column, Figure, Section, Table, Text
from transship.report.values import clean, script_json, show

_LIBRARIES = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "safetensors", "pyarrow")
_MARKS = re.compile(r"`([^`\n]+)`|\*\*([^*`\n]+)\*\*")
_CONTENTS_FROM = 4  # sections from which a list of contents is worth its place


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
    """A page that a user opens, prints or sends.

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
    def figures(self) -> list[Figure]:
        """Return the figures in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]

    def to_html(self) -> str:
        """Return the page as one HTML document. The same page gives the same bytes."""
        library = _plotly() if self.figures else None
        code = _asset("page.js")
        hashes = [_script_hash(code), *([library.hash] if library else [])]
        html: str = (
            _environment()
            .get_template("page.html.j2")
            .render(
                page=self,
                summary=Text(self.summary),
                style=_asset("page.css"),
                code=code,
                library=library.packed if library else None,
                policy=_policy(hashes),
                contents=len(self.sections) >= _CONTENTS_FROM,
            )
        )
        return html

    def to_markdown(self) -> str:
        """Return the page as Markdown; figures become their captions and numbers."""
        parts = [
            f"# {clean(self.title)}",
            clean(self.summary),
            *(part.to_markdown() for part in self.sections),
        ]
        if self.provenance is not None:
            parts += [f"### {title}\n\n{table.to_markdown()}" for title, table in self.provenance.tables()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, path: str | Path, force: bool = False) -> Path:
        """Write the page beside `path` and rename it into place; an existing file needs `force`."""
        return write_text(Path(path), self.to_html(), force=force)


def library_versions() -> dict[str, str]:
    """Return the versions of transship, Python and the libraries it works with; imports none of them."""
    import platform

    from transship import __version__

    found = {"transship": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_text(target: Path, text: str, *, force: bool = False) -> Path:
    """Write `text` as a whole or not at all; refuse an existing file unless `force`."""
    where = str(target)
    if target.is_dir():
        raise OutputError("there is a folder of this name", where=where, fix="name a file")
    if target.exists() and not force:
        raise OutputError("the file exists already", where=where, fix="pass --force, or name another file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise OutputError(
            f"nothing can be written there ({error.strerror})", where=where, fix="name another folder"
        ) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except OSError as error:
        raise OutputError(
            f"it could not be written ({error.strerror})", where=where, fix="check the disk"
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return target


@dataclass(frozen=True)
class _Library:
    """The Plotly bundle: gzip in base64 (2 MB, not 4.8), and the hash the browser checks it against."""

    packed: str
    hash: str


@cache
def _plotly() -> _Library:
    from plotly.offline import get_plotlyjs  # not plotly.graph_objects, which takes a second to import

    code = get_plotlyjs()
    packed = gzip.compress(code.encode(), compresslevel=9, mtime=0)
    return _Library(base64.b64encode(packed).decode(), _script_hash(code))


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
    return resources.files("transship.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


@cache
def _environment() -> Any:
    import jinja2

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
    from markupsafe import Markup

    return Markup(script_json(value))


def _inline(text: object) -> Any:
    """Return text as HTML: all escaped, then `code` and **strong** set."""
    from markupsafe import Markup, escape

    safe = str(escape(clean(text)))
    return Markup(_MARKS.sub(_marked, safe))


def _marked(match: re.Match[str]) -> str:
    code, strong = match.groups()
    return f"<code>{code}</code>" if code is not None else f"<strong>{strong}</strong>"


def _flat(entries: Mapping[str, Any], prefix: str = "") -> list[list[Any]]:
    """Return nested entries as rows of [dotted name, value]."""
    rows: list[list[Any]] = []
    for name, value in entries.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append([f"{prefix}{name}", value if not isinstance(value, Mapping) else "–"])
    return rows


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
