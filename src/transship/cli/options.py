"""Options of commands: from the dataclass that the library reads, and those that every command has.

A field gives an option of its name. Its help is the field's line under `Attributes:`, its type and choices
come from the annotation, its default is the field's. `transship.fields.setting` adds what else is needed. So
each option is written once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

import transship as ts
from transship import parallel
from transship.errors import OptionError
from transship.fields import OptionFacts, attribute_helps, default_of, parse_value, setting
from transship.locks import locked
from transship.numerics import parse_bytes
from transship.outside import unpacking_at_most

Command = TypeVar("Command", bound=Callable[..., Any])
Kind = TypeVar("Kind")


def settings_options(
    kind: type, *, only: Iterable[str] | None = None, without: Iterable[str] = ()
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a dataclass, in the order of its fields."""
    options = [
        _option(field, hint, help_)
        for field, hint, help_ in _described(kind)
        if field.name not in set(without) and (only is None or field.name in set(only))
    ]

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def read_settings(kind: type[Kind], given: Mapping[str, Any], **values: Any) -> Kind:
    """Return the dataclass of what was given on the command line; `values` are set without an option."""
    read = {
        field.name: _read(given[field.name], hint, field)
        for field, hint, _ in _described(kind)
        if field.name in given and field.name not in values
    }
    return kind(**read, **values)


def _described(kind: type) -> list[tuple[dataclasses.Field[Any], Any, str]]:
    hints, helps = typing.get_type_hints(kind), attribute_helps(kind)
    return [
        (field, hints[field.name], field.metadata.get("help") or _sentence(helps.get(field.name, "")))
        for field in dataclasses.fields(kind)
        if field.init and not field.metadata.get("absent")
    ]


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:] if text[:1].isalpha() else text
    return text if not text or text.endswith(".") else f"{text}."


def _option(field: dataclasses.Field[Any], hint: Any, help_: str) -> Callable[[Command], Command]:
    facts = typing.cast(OptionFacts, field.metadata)
    flags = _flags(field)
    default, parts = default_of(field), _parts(hint)
    if "negative" in facts:
        return click.option(*flags, field.name, flag_value=False, default=True, help=help_)
    if parts == (bool,):
        both = () if default is not None else (f"{flags[0]}/--no-{flags[0].removeprefix('--')}",)
        return click.option(*(both or flags), field.name, is_flag=True, default=default, help=help_)
    shared: dict[str, Any] = {"help": help_, "metavar": facts.get("metavar")}
    if typing.get_origin(parts[0]) is tuple:
        each = _click_type(typing.get_args(parts[0])[:1], facts)
        return click.option(*flags, field.name, multiple=True, type=each, **shared)
    return click.option(
        *flags,
        field.name,
        type=_click_type(parts, facts),
        show_default=default not in (None, ""),
        callback=facts.get("callback"),
        **({"required": True} if _required(field) else {"default": _written(default)}),
        **shared,
    )


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _flags(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    facts = typing.cast(OptionFacts, field.metadata)
    if "negative" in facts:
        return (facts["negative"],)
    return facts.get("flags", (f"--{field.name.replace('_', '-')}",))


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the types that a field may have, apart from None."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(part for part in (typing.get_args(hint) if union else (hint,)) if part is not type(None))


def _click_type(parts: tuple[Any, ...], facts: OptionFacts) -> Any:
    least, most = facts.get("least"), facts.get("most")
    if parts == (int,):
        return _Whole() if least is most is None else click.IntRange(_whole(least), _whole(most))
    if parts == (float,):
        return click.FLOAT if least is most is None else click.FloatRange(least, most)
    if parts == (Path,):
        return click.Path(
            path_type=Path, dir_okay=not facts.get("file", False), exists=facts.get("exists", False)
        )
    if all(part is bool or typing.get_origin(part) is Literal for part in parts):
        return click.Choice([choice for part in parts for choice in _choices(part)])
    return click.STRING


class _Whole(click.types.IntParamType):
    """A whole number that arrays and generators take."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if abs(number) >= 2**63:
            self.fail(f"{number:.3g} is too large.", param, ctx)
        return number


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _choices(part: Any) -> list[str]:
    return ["no", "yes"] if part is bool else [str(choice) for choice in typing.get_args(part)]


def _written(default: Any) -> Any:
    return {True: "yes", False: "no"}[default] if isinstance(default, bool) else default


def _read(value: Any, hint: Any, field: dataclasses.Field[Any]) -> Any:
    """Return what click made of a word as the field's type."""
    if value is None or isinstance(value, (tuple, Path)):
        return value
    return parse_value(value, hint, where=_flags(field)[-1])


@dataclass(frozen=True, kw_only=True)
class Output:
    """What comes out of a command.

    Attributes:
        force: replace what is already there.
        report: write a page with tables and figures, in HTML.
        as_json: print the result as JSON.
    """

    force: bool = False
    report: Path | None = setting(None, metavar="FILE", file=True)
    as_json: bool = setting(False, flags=("--json",))


@dataclass(frozen=True, kw_only=True)
class Seed:
    """What fixes a run.

    Attributes:
        seed: fixes every random choice.
    """

    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Where models run.

    Attributes:
        device: where models run: cpu, cuda, cuda:1, mps; auto is a GPU of CUDA where there is one.
        device_map: spread each model over devices instead: auto, or JSON of module and device.
    """

    device: str = "auto"
    device_map: str | None = setting(None, metavar="MAP")


@dataclass(frozen=True, kw_only=True)
class Compute(Devices, Seed):
    """How models are run.

    Attributes:
        dtype: what models run in; float32 by default.
    """

    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What may be run.

    Attributes:
        trust_remote_code: run code that a model's repository carries.
    """

    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class OpeningOptions(Trust):
    """What may be run or unpickled.

    Attributes:
        allow_pickle: read .bin and .pt files too (weights only).
    """

    allow_pickle: bool = False


def _limit_unpacking(context: click.Context, option: click.Parameter, size: str | None) -> str | None:
    """Let no file that the command reads unpack into more than the option allows."""
    context.with_resource(unpacking_at_most(None if size is None else parse_bytes(size)))
    return size


@dataclass(frozen=True, kw_only=True)
class Memory:
    """How much memory there is, for commands that choose their chunks by it.

    Attributes:
        memory: memory limit per process, for example 2GB. Memory-mapped files do not count. Work that cannot
            fit is refused before it starts.
    """

    memory: str | None = setting(None, metavar="SIZE", callback=_limit_unpacking)


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who does the work on a table.

    Attributes:
        engine: work on this machine, or on Ray, which takes Parquet only.
        address: a running Ray cluster; otherwise a local one.
        jobs: processes that share the work (1 by default), or Ray tasks at a time (all CPUs by default); the
            result is the same.
    """

    engine: Literal["local", "ray"] = "local"
    address: str | None = setting(None, metavar="HOST:PORT")
    jobs: int | None = setting(None, least=1, most=1024)


output_options = settings_options(Output)
seed_option = settings_options(Seed)
device_options = settings_options(Devices)
compute_options = settings_options(Compute)
trust_option = settings_options(Trust)
model_options = settings_options(OpeningOptions)
memory_option = settings_options(Memory)
engine_options = settings_options(Workers)


def print_json(value: Any) -> None:
    """Print `value` to standard output as JSON."""
    click.echo(ts.report.json.dumps(value))


def show(
    page: ts.report.Page,
    *,
    as_json: bool = False,
    report: Path | None = None,
    force: bool = False,
    quiet: bool = False,
) -> None:
    """Tell what a command found: as JSON or lines on standard output, and as a page in the file `report`."""
    if report is not None:
        ts.report.html.write(page, report, force=force)
    if not quiet:
        click.echo(ts.report.json.render(page) if as_json else ts.report.terminal.render(page))
    if report is not None and not quiet:
        click.echo(f"the page is at {report}", err=as_json)


def pushing(out: str = "out") -> Callable[[Command], Command]:
    """Return a decorator that adds --push: once the command is done, the folder that it wrote is uploaded."""

    def add(command: Command) -> Command:
        @click.option(
            "--push", metavar="OWNER/NAME", help="Then upload OUT to the hub, where only you see it."
        )
        @click.option("--public", is_flag=True, help="Let everybody see what --push uploads.")
        @functools.wraps(command)
        def run(*arguments: Any, push: str | None, public: bool, **given: Any) -> None:
            from transship.hub import Push  # start-up

            upload = Push(push or "", public=public, force=bool(given.get("force")))
            if push is None and public:
                raise OptionError("nothing is uploaded", where="--public", fix="add --push OWNER/NAME")
            if push is not None:
                click.echo(f"push: {upload.plan()}", err=True)
            command(*arguments, **given)
            if push is not None and parallel.is_main():
                for line in upload.send(Path(given[out])):
                    click.echo(line, err=True)

        return typing.cast(Command, run)

    return add


def writing(out: str | os.PathLike[str]) -> contextlib.AbstractContextManager[None]:
    """Hold OUT while a command works, so that no other command on this machine writes there meanwhile."""
    return locked(out) if parallel.is_main() else contextlib.nullcontext()
