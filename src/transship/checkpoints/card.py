"""Where a result came from: `README.md` for people and the hub, `transship.json` for programs.

Neither holds a date: the same inputs, method and seed give the same bytes.
"""

from __future__ import annotations

import html
import json
import platform
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transship
from transship.checkpoints.checkpoint import Checkpoint

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?", re.ASCII)
_LOCAL = re.compile(r"(?<![\w:/.])(?:~?/|[A-Za-z]:\\)[^\s\"'|,;:/]+/[^\s\"'|,;]*")  # a full path in a text
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~])")
_OPTIONAL = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class Input:
    """One thing that a result was made from.

    Attributes:
        role: what it was used for: `base`, `tuned`, `data`.
        name: what a reader elsewhere knows it by: the hub id, else the last part of its path.
        fingerprint: the hash of its content.
    """

    role: str
    name: str
    fingerprint: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", public_name(self.name))

    @classmethod
    def of(cls, role: str, checkpoint: Checkpoint) -> Input:
        return cls(role, checkpoint.name, checkpoint.fingerprint())


def public_name(reference: str) -> str:
    """Return what a reference is called elsewhere: its hub id, else the last part of its path.

    The rest of a local path says how somebody's disk is ordered, and helps nobody who reads a card.
    """
    path = Path(reference)
    for part in path.parts:  # the hub's cache: models--owner--name/snapshots/revision
        if part.startswith(("models--", "datasets--")):
            return "/".join(part.split("--")[1:])
    if _HUB_ID.fullmatch(reference) and not path.exists():
        return reference
    return path.name or path.resolve().name or reference


def _public(value: Any) -> Any:
    """Return texts without the folders of full paths in them."""
    if isinstance(value, str):
        return _LOCAL.sub(lambda path: public_name(path[0]), value)
    if isinstance(value, Mapping):
        return {name: _public(part) for name, part in value.items()}
    return [_public(part) for part in value] if isinstance(value, (list, tuple)) else value


def versions() -> dict[str, str]:
    """Return the versions that made a result: Python, numpy and ours, and the heavy ones that were in use."""
    # the modules say it themselves; importlib.metadata would cost a merge's user 20 ms
    versions = {"transship": transship.__version__, "python": platform.python_version()}
    for name in ("numpy", *_OPTIONAL):
        if name in sys.modules:
            versions[name] = str(sys.modules[name].__version__)
    return versions


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a result is and how it was made.

    Attributes:
        title: the heading of the page.
        verb: `transport`, `merge`, `translate` or `adapt`.
        method: the registered name of the method.
        summary: a sentence or two for the reader.
        notes: what a reader must know to use it, a line each; `code` between backticks.
        parameters: the method's fields and other options, by name.
        inputs: everything that went in.
        metrics: measured quality, by name.
        library: the hub's `library_name`: `transformers` or `peft`.
        recipe: the YAML that it was made by, where there is one.
    """

    title: str
    verb: str
    method: str
    summary: str = ""
    notes: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[Input] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    library: str = "transformers"
    versions: Mapping[str, str] = field(default_factory=versions)
    recipe: str = ""

    def __post_init__(self) -> None:
        """Leave out where things lie on this machine."""
        for name in ("title", "summary", "notes", "parameters", "metrics", "recipe"):
            object.__setattr__(self, name, _public(getattr(self, name)))

    def markdown(self) -> str:
        """Return the page: a YAML head that the hub reads, then tables; names from outside are escaped."""
        bases = [given.name.split("@")[0] for given in self.inputs if _HUB_ID.fullmatch(given.name)]
        head = ["---", f"library_name: {_quoted(self.library)}", f"tags: {_quoted(['transship', self.verb])}"]
        head += [f"base_model: {_quoted(sorted(set(bases)))}"] if bases else []
        lines = [*head, "---", "", f"# {plain_text(self.title)}", ""]
        lines += [plain_text(self.summary), ""] if self.summary else []
        for note in self.notes:
            lines += [_with_code(note), ""]
        sentence = f"Made with transship, verb {plain_text(self.verb)}, method {plain_text(self.method)}"
        lines += [sentence + (f", seed {self.seed}." if self.seed is not None else "."), ""]
        lines += _block(self.recipe)
        lines += _table("Inputs", ("role", "name", "SHA-256"), [_row(given) for given in self.inputs])
        lines += _table("Parameters", ("name", "value"), list(self.parameters.items()))
        lines += _table("Measured", ("name", "value"), list(self.metrics.items()))
        lines += _table("Versions", ("name", "version"), list(self.versions.items()))
        return "\n".join(lines)

    def provenance(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return {
            "format": "transship/1",
            "title": self.title,
            "verb": self.verb,
            "method": self.method,
            "parameters": _plain(self.parameters),
            **({"recipe": self.recipe} if self.recipe else {}),
            "inputs": [
                {"role": given.role, "name": given.name, "sha256": given.fingerprint} for given in self.inputs
            ],
            "metrics": _plain(self.metrics),
            "seed": self.seed,
            "versions": dict(self.versions),
        }

    def files(self) -> dict[str, str]:
        return {"README.md": self.markdown(), "transship.json": as_json(self.provenance())}


def as_json(value: Any) -> str:
    """Return JSON as all our files have it: indented, in ASCII, ended by a newline."""
    return json.dumps(value, indent=2) + "\n"  # configs of some families hold Infinity, and are carried along


def plain_text(value: object) -> str:
    """Return text that Markdown, HTML and a table's cell show as it is, whatever a file name holds.

    Line breaks, control and direction signs become visible escapes.
    """
    shown = "".join(
        repr(sign)[1:-1] if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") else sign
        for sign in str(value)
    )
    return _MARKDOWN.sub(r"\\\1", html.escape(shown, quote=True))


def _with_code(text: str) -> str:
    """Return plain text with what stands between backticks as code."""
    parts = text.split("`")
    return "".join(f"`{part}`" if number % 2 else plain_text(part) for number, part in enumerate(parts))


def _row(one: Input) -> tuple[object, ...]:
    return one.role, one.name, one.fingerprint


def _table(title: str, columns: tuple[str, ...], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return []
    lines = [f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(plain_text(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _block(recipe: str) -> list[str]:
    """Return YAML in a fence that is longer than any in it."""
    if not recipe:
        return []
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", recipe)), default=0))
    return ["## Recipe", "", f"{fence}yaml", recipe.rstrip("\n"), fence, ""]


def _quoted(value: str | list[str]) -> str:
    """Return a text, or a list of texts, as JSON, which YAML reads as the same."""
    return json.dumps(value)


def _plain(value: Any) -> Any:
    """Return what JSON can hold; other things by their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "item"):  # a number of numpy or torch
        return _plain(value.item())
    return value if isinstance(value, float) and abs(value) < float("inf") else str(value)
