"""Defaults of options: from a variable `TRANSSHIP_<COMMAND>_<OPTION>`, or from a file `transship.toml`.

A file has a table for each command, with options as on the command line:

    [merge.run]
    memory = "4GB"

`transship.toml` in the working folder comes before the one in the user's settings folder. The command line
comes before a variable, and a variable before a file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from transship import folders
from transship.errors import OptionError
from transship.fields import unknown

FILE = "transship.toml"
LARGEST = 1_000_000  # bytes of a file
# a file lies in a folder that somebody else may have written: it must not let their code run, replace what is
# there, or send data to another machine
NEVER = ("address", "allow-pickle", "force", "public", "push", "suites", "trust-remote-code")
Table = dict[str, Any]


def files() -> list[Path]:
    """Return the files of defaults that are here; what an earlier one says comes first."""
    return [file for file in (Path(FILE), folders.config() / FILE) if file.exists()]


def defaults_of(command: click.Command, name: str, known: list[str]) -> Table:
    """Return what click calls a default map, for one command and the commands below it.

    `known` are all commands of the program. A name that is none of them is refused, and so is an unknown
    option of `command`. Tables of other commands are looked at when those run.
    """
    merged: Table = {}
    for file in reversed(files()):
        content = _read(file)
        for given in content:
            if given not in known:
                raise unknown(given, known, kind="command", where=str(file))
        if name in content:
            _merge(merged, _table(command, content[name], (name,), str(file)))
    _merge(merged, _variables(command, name))
    return merged


def option_name(option: click.Option) -> str:
    """Return what an option is called in a file: its longest flag without the dashes."""
    return max(option.opts, key=len).removeprefix("--")


def variable(path: tuple[str, ...], option: click.Option) -> str:
    """Return the variable of an option of the command at `path`."""
    return "_".join(("transship", *path, option_name(option))).upper().replace("-", "_")


def _read(file: Path) -> Table:
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise OptionError(
                "the file is too large for settings", where=str(file), fix=f"keep it below {LARGEST:,} bytes"
            )
        return tomllib.loads(text.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise OptionError(
            f"it cannot be read as TOML ({str(error) or type(error).__name__})",
            where=str(file),
            fix="mend or remove it",
        ) from error


def _table(command: click.Command, given: Any, path: tuple[str, ...], file: str) -> Table:
    """Return a command's table by the names of its parameters."""
    where = f"{file}: [{'.'.join(path)}]"
    if not isinstance(given, Mapping):
        raise OptionError("it is no table", where=where, fix=f"write [{'.'.join(path)}] and options below it")
    options = {option_name(option): option for option in _options(command)}
    below = command.commands if isinstance(command, click.Group) else {}
    values: Table = {}
    for key, value in given.items():
        plain = key.replace("_", "-")
        if plain in below:
            values[plain] = _table(below[plain], value, (*path, plain), file)
        elif plain in NEVER:
            raise OptionError(
                f"{plain} is taken from no file, because others may have written it",
                where=where,
                fix=f"give --{plain} on the command line",
            )
        elif plain in options:
            values[str(options[plain].name)] = _value(command, options[plain], value, f"{where} {plain}")
        else:
            raise unknown(key, [*options, *below], kind="option", where=where)
    return values


def _variables(command: click.Command, name: str) -> Table:
    here = {variable(path, option): (path, option) for path, option in _all_options(command, (name,))}
    start = f"transship_{name}_".upper()
    values: Table = {}
    for key in sorted(os.environ):
        if not key.startswith(start) or not os.environ[key]:
            continue
        if key not in here:
            raise unknown(key, here, kind="variable", where="environment")
        path, option = here[key]
        inner, owner = values, command
        for step in path[1:]:
            assert isinstance(owner, click.Group)
            inner, owner = inner.setdefault(step, {}), owner.commands[step]
        inner[str(option.name)] = _value(owner, option, _words(option, os.environ[key]), key)
    return values


def _all_options(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    for option in _options(command):
        yield path, option
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _all_options(child, (*path, name))


def _options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _words(option: click.Option, text: str) -> Any:
    """Return the text of a variable as a file would have it: words of an option that may stand twice."""
    if not option.multiple:
        return text
    words = text.split()
    return words if option.nargs == 1 else [words[at : at + 2] for at in range(0, len(words), 2)]


def _value(command: click.Command, option: click.Option, value: Any, where: str) -> Any:
    """Return a value as the command line would read it."""
    if option.multiple and isinstance(value, Mapping):
        value = list(value.items())
    try:
        if option.is_flag:
            on = click.BOOL.convert(value if isinstance(value, bool) else _word(value), option, None)
            return not on if option.flag_value is False else on
        words = [_several(each) for each in value] if option.multiple and _listed(value) else _word(value)
        option.type_cast_value(click.Context(command), words)
    except (click.BadParameter, TypeError) as error:
        reason = error.message if isinstance(error, click.BadParameter) else str(error)
        reason = reason[:1].lower() + reason[1:].rstrip(".")
        raise OptionError(
            f"it does not fit ({reason})", where=where, fix="write it as on the command line"
        ) from error
    return words


def _listed(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _several(value: Any) -> Any:
    return tuple(_word(each) for each in value) if _listed(value) else _word(value)


def _word(value: Any) -> str:
    """Return a value of TOML as a word of the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"a {type(value).__name__} is no word of a command line")
    return str(value)


def _merge(into: Table, other: Table) -> None:
    """Let what `other` says stand before what was there."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
