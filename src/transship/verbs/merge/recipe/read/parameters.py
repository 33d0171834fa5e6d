"""The settings of a recipe: scalars, gradients over depth, and filters on tensor names.

A setting is a scalar, a list of scalars (a gradient), a mapping of `filter` and `value`, or a list of such
mappings, of which the first whose filter is part of the tensor's name counts.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transship.errors import OptionError
from transship.verbs.merge.protocol import RecipeMethod
from transship.verbs.merge.recipe.read.document import Block, Items

Scalar = bool | int | float | str


@dataclass(frozen=True)
class Rule:
    """One value, or one gradient, for the tensors whose names contain `filter`."""

    filter: str | None
    value: Scalar | tuple[Scalar, ...]

    def matches(self, name: str) -> bool:
        """Say whether the rule is about the tensor `name`: a plain substring, or no filter, or `*`."""
        return self.filter in (None, "*") or str(self.filter) in name


@dataclass(frozen=True)
class Setting:
    """What a recipe says of one parameter in one place.

    Attributes:
        rules: in the recipe's order; the first that matches counts.
        where: file and line, for errors.
    """

    rules: tuple[Rule, ...]
    where: str = ""

    def value(self, name: str, position: float) -> Scalar | None:
        """Return the value for the tensor `name` at `position` ∈ [0, 1] of its slice, None without a rule."""
        for rule in self.rules:
            if rule.matches(name):
                return gradient(rule.value, position) if isinstance(rule.value, tuple) else rule.value
        return None


Settings = Mapping[str, Setting]


def gradient(values: Sequence[Scalar], position: float) -> Scalar:
    """Return `values` at `position` ∈ [0, 1], linear in between; texts and booleans are picked, not mixed.

    With k values: x = position·(k−1), i = ⌊x⌋, and the value lies between values[i] and values[min(i+1,
    k−1)].
    """
    x = position * (len(values) - 1)
    index = min(int(x), len(values) - 1)
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return values[index]
    low, high = float(values[index]), float(values[min(index + 1, len(values) - 1)])
    return low + (high - low) * (x - index)


def layer_position(layer: int, layers: int) -> float:
    """Return where a layer stands in its slice: 0 for the first, 1 for the last and for an only one."""
    return layer / (layers - 1) if layers > 1 else 1.0


def resolve(scopes: Sequence[Settings], parameter: str, name: str, position: float) -> Scalar | None:
    """Return the value of `parameter` from the first scope that has a matching rule, None when none has."""
    for scope in scopes:
        setting = scope.get(parameter)
        if setting is not None:
            value = setting.value(name, position)
            if value is not None:
                return value
    return None


def read_settings(parent: Block, key: str = "parameters") -> dict[str, Setting]:
    """Return the settings below `parent[key]`, which may be absent."""
    block = parent.get(key)
    if block is None:
        return {}
    if not isinstance(block, Block):
        raise parent.error(
            f"{key} takes a mapping of names to values", f"write {key}: {{weight: 0.5}}", key=key
        )
    return {name: Setting(_rules(block, name), block.where(name)) for name in block}


def _rules(block: Block, name: str) -> tuple[Rule, ...]:
    value = block[name]
    if isinstance(value, Block):
        return (_conditional(value, name),)
    if isinstance(value, Items) and any(isinstance(item, Block) for item in value):
        for item, line in zip(value, value.lines, strict=True):
            if not isinstance(item, Block):
                place = Block(block.path, line)
                raise place.error(
                    f"'{name}' mixes plain values with filters", "give each value as {filter: …, value: …}"
                )
        return tuple(_conditional(item, name) for item in value)
    return (Rule(None, _plain(block, name, value)),)


def _conditional(block: Block, name: str) -> Rule:
    block.expect(("filter", "value"), f"the parameter '{name}'")
    if "value" not in block:
        raise block.error(f"the filter of '{name}' has no value", "add value: beside filter:")
    chosen = block.get("filter")
    if chosen is not None and not isinstance(chosen, str):
        raise block.error("a filter is a part of a tensor's name", "write it as text", key="filter")
    return Rule(chosen, _plain(block, "value", block["value"]))


def _plain(block: Block, key: str, value: Any) -> Scalar | tuple[Scalar, ...]:
    if isinstance(value, Items):
        if not value:
            raise block.error(f"'{key}' is an empty list", "give at least one value", key=key)
        values = tuple(_scalar(block, key, item) for item in value)
        # YAML 1.1 reads 1e-4 as text; in a gradient it is meant as a number
        numbers = [number for number in map(_as_number, values) if number is not None]
        return tuple(numbers) if len(numbers) == len(values) else values
    return _scalar(block, key, value)


def _scalar(block: Block, key: str, value: Any) -> Scalar:
    if isinstance(value, bool | int | float | str):
        return value
    raise block.error(
        f"'{key}' takes a number, a text, true or false, or a list of them", "write one value", key=key
    )


def _as_number(value: Scalar) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@functools.cache
def _hints(kind: type[RecipeMethod]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def coerce(kind: type[RecipeMethod], field: str, value: Any, where: str) -> Any:
    """Return `value` as the field's type: numeric text as a number, 0 and 1 as booleans."""
    hint = _hints(kind)[field]  # type: ignore[arg-type]  # mypy takes the class for its instances
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for part in parts:
        if typing.get_origin(part) is Literal and value in typing.get_args(part):
            return value
        if part is bool and (isinstance(value, bool) or value in (0, 1)):
            return bool(value)
        if part is float and not isinstance(value, bool):
            number = _number(value)
            if number is not None:
                return number
        if part is int and not isinstance(value, bool):
            number = _number(value)
            if number is not None and number == int(number):
                return int(number)
    raise OptionError(f"'{value}' does not fit", where=where, fix=f"give {_described(parts)}")


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None  # neither infinite nor NaN


def _described(parts: tuple[Any, ...]) -> str:
    names = {float: "a number", int: "a whole number", bool: "true or false", type(None): "nothing"}
    return " or ".join(
        " or ".join(map(str, typing.get_args(part))) if typing.get_origin(part) is Literal else names[part]
        for part in parts
    )
