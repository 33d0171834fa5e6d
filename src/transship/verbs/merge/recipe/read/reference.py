"""What a recipe calls a model: `path`, `owner/name@revision`, `path+adapter`, a mapping, another recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transship.errors import OptionError
from transship.verbs.merge.recipe.read.document import Block


@dataclass(frozen=True)
class Place:
    """One folder or hub repository, at a revision."""

    path: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.path}@{self.revision}" if self.revision else self.path


@dataclass(frozen=True)
class ModelReference:
    """A model of a recipe: its weights, and the adapter to add to them."""

    model: Place
    lora: Place | None = None

    def __str__(self) -> str:
        return f"{self.model}+{self.lora}" if self.lora else str(self.model)

    @property
    def is_recipe(self) -> bool:
        """Say whether the model is the output of another recipe file."""
        return self.model.path.endswith((".yaml", ".yml"))


def parse_reference(text: str, where: str) -> ModelReference:
    """Return the reference that `path[@revision][+adapter[@revision]]` stands for.

    A text that is the path of an existing folder or file is that path, whatever signs are in it.
    """
    if not text:
        raise OptionError("the model has no name", where=where, fix="give a path or owner/name")
    if Path(text).exists():
        return ModelReference(Place(text))
    parts = text.split("+")
    if len(parts) > 2:
        raise _confusing(text, "+", where)
    return ModelReference(*(_place(part, text, where) for part in parts))


def _place(part: str, text: str, where: str) -> Place:
    if not part:
        raise OptionError(f"'{text}' has nothing on one side of +", where=where, fix="write path+adapter")
    if Path(part).exists():
        return Place(part)
    path, *revision = part.split("@")
    if len(revision) > 1 or not path:
        raise _confusing(text, "@", where)
    return Place(path, revision[0] if revision else None)


def _confusing(text: str, sign: str, where: str) -> OptionError:
    return OptionError(
        f"'{text}' has more than one {sign}",
        where=where,
        fix="write a mapping {model: {path: …, revision: …}, lora: {path: …}} for a path with such signs",
    )


def read_reference(parent: Block, key: str) -> ModelReference:
    """Return the reference at `parent[key]`: a text, or a mapping of `model` and `lora`."""
    value = parent[key]
    if isinstance(value, str):
        return parse_reference(value, parent.where(key))
    if not isinstance(value, Block):
        raise parent.error("a model is a path, owner/name or a mapping", "write model: path", key=key)
    value.expect(("model", "lora", "override_architecture", "path", "revision"), "a model")
    if "path" in value:
        return ModelReference(_mapped_place(value))
    if "model" not in value:
        raise value.error("the mapping names no model", "add model: {path: …}")
    lora = _nested_place(value, "lora") if value.get("lora") is not None else None
    return ModelReference(_nested_place(value, "model"), lora)


def _nested_place(block: Block, key: str) -> Place:
    value = block[key]
    if isinstance(value, str):
        return Place(value)
    if not isinstance(value, Block):
        raise block.error(f"{key} takes a path or a mapping", f"write {key}: {{path: …}}", key=key)
    return _mapped_place(value)


def _mapped_place(block: Block) -> Place:
    block.expect(("path", "revision"), "a model")
    path, revision = block.get("path"), block.get("revision")
    if not isinstance(path, str) or not (revision is None or isinstance(revision, str)):
        raise block.error("a model needs a path", "add path: as text")
    return Place(path, revision)
