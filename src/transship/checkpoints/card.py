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
_LICENSE = re.compile(r"^license: *[\"']?([\w.+-]+)", re.MULTILINE | re.ASCII)
_HEAD = 1 << 16  # characters of a card that may be its head
# verb → what the hub calls the way from the base to the result
_DATA = ("data", "test", "original", "keep")
_RELATIONS = {"merge": "merge", "extract": "adapter", "transport": "finetune", "adapt": "finetune"}
_OPTIONAL = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class Input:
    """One thing that a result was made from.

    Attributes:
        role: what it was used for: `base`, `tuned`, `data`.
        name: what a reader elsewhere knows it by: the hub id, else the last part of its path.
        fingerprint: the hash of its content.
        license: as its own card states it, else empty.
    """

    role: str
    name: str
    fingerprint: str
    license: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "license", self.license or license_of(self.name))
        object.__setattr__(self, "name", public_name(self.name))

    @classmethod
    def of(cls, role: str, checkpoint: Checkpoint) -> Input:
        return cls(role, checkpoint.name, checkpoint.fingerprint(), license_of(checkpoint.folder))


def license_of(folder: str | Path | None) -> str:
    """Return the licence that the card in a folder states; empty without one."""
    if folder is None:
        return ""
    try:
        with (Path(folder) / "README.md").open(encoding="utf-8") as card:
            head = card.read(_HEAD).split("\n---", 1)[0]
    except (OSError, ValueError):
        return ""
    match = _LICENSE.search(head) if head.startswith("---") else None
    return match[1] if match is not None else ""


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
        library: the hub's `library_name`: `transformers`, `sentence-transformers` or `peft`.
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
        head = ["---", *(f"{name}: {json.dumps(value)}" for name, value in self.head().items())]
        lines = [*head, "---", "", f"# {plain_text(self.title)}", ""]
        lines += [plain_text(self.summary), ""] if self.summary else []
        for note in self.notes:
            lines += [_with_code(note), ""]
        sentence = f"Made with transship, verb {plain_text(self.verb)}, method {plain_text(self.method)}"
        lines += [sentence + (f", seed {self.seed}." if self.seed is not None else "."), ""]
        lines += _block(self.recipe)
        lines += _table(
            "Inputs", ("role", "name", "SHA-256", "licence"), [_row(given) for given in self.inputs]
        )
        lines += _table("Parameters", ("name", "value"), list(self.parameters.items()))
        lines += _table("Measured", ("name", "value"), list(self.metrics.items()))
        lines += _table("Versions", ("name", "version"), list(self.versions.items()))
        return "\n".join(lines)

    def head(self) -> dict[str, Any]:
        """Return what the hub reads, as `huggingface_hub.ModelCardData` names it.

        JSON is YAML too, so the head is written without that library, which would triple a merge's start.
        """
        hub: dict[str, list[str]] = {"base": [], "data": []}
        for given in self.inputs:
            if _HUB_ID.fullmatch(given.name):
                hub["data" if given.role in _DATA else "base"].append(given.name.split("@")[0])
        relation = "adapter" if self.library == "peft" else _RELATIONS.get(self.verb)
        licenses = sorted({given.license for given in self.inputs if given.role not in _DATA})
        head: dict[str, Any] = {"library_name": self.library, "tags": ["transship", self.verb]}
        if len(licenses) == 1 and licenses[0]:
            head["license"] = licenses[0]
        elif all(licenses) and licenses:  # of a part without one nothing is said
            head |= {"license": "other", "license_name": " and ".join(licenses)}
        if hub["base"]:
            head |= {"base_model": sorted(set(hub["base"]))}
            head |= {"base_model_relation": relation} if relation else {}
        if hub["data"]:
            head["datasets"] = sorted(set(hub["data"]))
        if results := self._results():
            head["model-index"] = [{"name": self.title, "results": results}]
        return head

    def _results(self) -> list[dict[str, Any]]:
        """Return the measured numbers as the hub's model index has them."""
        measured = [
            {"type": plain_key(name), "name": name, "value": value}
            for name, value in _plain(self.metrics).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        name = next((given.name for given in self.inputs if given.role in _DATA), "not stated")
        task = {"type": "other", "name": self.verb}
        data = {"type": plain_key(name), "name": name}
        return [{"task": task, "dataset": data, "metrics": measured}] if measured else []

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
                {"role": given.role, "name": given.name, "sha256": given.fingerprint}
                | ({"license": given.license} if given.license else {})
                for given in self.inputs
            ],
            "metrics": _plain(self.metrics),
            "seed": self.seed,
            "versions": dict(self.versions),
        }

    def files(self) -> dict[str, str]:
        return {"README.md": self.markdown(), "transship.json": as_json(self.provenance())}


def plain_key(name: str) -> str:
    """Return a name as an identifier of the hub has it."""
    return re.sub(r"[^\w./-]+", "-", name, flags=re.ASCII).strip("-") or "other"


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
    return _MARKDOWN.sub(r"\\\1", html.escape(shown, quote=False))


def _with_code(text: str) -> str:
    """Return plain text with what stands between backticks as code."""
    parts = text.split("`")
    return "".join(f"`{part}`" if number % 2 else plain_text(part) for number, part in enumerate(parts))


def _row(one: Input) -> tuple[object, ...]:
    return one.role, one.name, one.fingerprint, one.license or "not stated"


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
