"""A recipe's values as the types that a method's fields have."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, Literal

from transship.errors import OptionError
from transship.verbs.merge.protocol import RecipeMethod


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
    raise OptionError(f"'{value}' does not fit", where=where, fix=f"give {_text(parts)}")


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None  # neither infinite nor NaN


def _text(parts: tuple[Any, ...]) -> str:
    names = {float: "a number", int: "a whole number", bool: "true or false", type(None): "nothing"}
    return " or ".join(
        " or ".join(map(str, typing.get_args(part))) if typing.get_origin(part) is Literal else names[part]
        for part in parts
    )
