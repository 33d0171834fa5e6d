"""What every command has: -v and -q, an example that stays on one line, and outputs that are no inputs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from transship.cli.defaults import files
from transship.errors import printable
from transship.numerics import format_bytes
from transship.progress import duration
from transship.targets import require_apart

_LOG = logging.getLogger("transship.cli")
LOGGERS = ("transship", "transship_suites")
_TALK = "transship.cli.talk"  # in the context: what the user asked for
_WARNS = "transship.cli.warns"  # likewise: who tells warnings where nobody asked for a log
# what commands write; what they read is every other argument, and the options that name a file or a model
WRITTEN = ("out", "report")
READ = frozenset(
    {"backbone", "base", "classes", "data", "keep", "model", "old_queries", "original", "prepared"}
    | {"queries", "test", "train", "validation"}
)


def equip(command: click.Command) -> click.Command:
    """Give a command, and those below it, what every command has."""
    command.params += [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_verbose,
            help="Log to standard error what is read and written; -vv logs more.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=_quiet,
            help="Print results and errors only: no plan, progress or warning.",
        ),
    ]
    if command.epilog:
        command.epilog = f"\b\n{command.epilog}"  # a line that is wrapped cannot be pasted
    if isinstance(command, click.Group):
        for child in command.commands.values():
            equip(child)
    else:
        command.invoke = partial(_invoke, command, command.invoke)  # type: ignore[method-assign]
    return command


def _invoke(command: click.Command, carry_out: Any, context: click.Context) -> Any:
    """Run a command whose outputs are apart from what it reads; `--force` does not help."""
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    names = {str(each.name): each.human_readable_name.upper() for each in arguments}
    names |= {str(each.name): each.opts[-1] for each in command.params if each.name in READ - names.keys()}
    given = context.params
    for written in WRITTEN:
        if given.get(written) is not None:
            read = {label: given.get(name) for name, label in names.items() if name != written}
            require_apart(given[written], read)
    return carry_out(context)


def _verbose(context: click.Context, option: click.Parameter, count: int) -> None:
    """Show the log of the library while the command runs; without -v what it warns of, such as a guess."""
    program = context.find_root()
    if not count:
        if _WARNS not in program.meta:
            program.meta[_WARNS] = _Warnings(logging.WARNING)
            logging.getLogger("transship.data").addHandler(program.meta[_WARNS])
            forget = partial(logging.getLogger("transship.data").removeHandler, program.meta[_WARNS])
            program.call_on_close(forget)
        return
    _either(context, "verbose")
    if _WARNS in program.meta:
        logging.getLogger("transship.data").removeHandler(program.meta[_WARNS])
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    # the program's context: a command whose options are refused is never closed
    for logger in map(logging.getLogger, LOGGERS):
        program.call_on_close(partial(logger.setLevel, logger.level))
        program.call_on_close(partial(logger.removeHandler, handler))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if count == 1 else logging.DEBUG)
    for file in files():
        _LOG.info("defaults of options from %s", file)
    program.call_on_close(partial(_account, time.monotonic()))


def _account(begun: float) -> None:
    """Say what the command took."""
    took = f"took {duration(time.monotonic() - begun)}"
    try:
        import resource  # not on Windows
    except ImportError:
        _LOG.info("%s", took)
        return
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _LOG.info("%s and at most %s of memory", took, format_bytes(most))


class _Warnings(logging.Handler):
    """Tells what a reader of data warns of, on whatever is standard error then."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"note: {printable(record.getMessage())}", err=True)


class _Lines(logging.Formatter):
    """One line for each record, in which nothing moves the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.name}: {super().format(record)}")


def _quiet(context: click.Context, option: click.Parameter, asked: bool) -> None:
    """Close standard error while the command runs; `main` prints errors to the one that it knows."""
    if not asked:
        return
    _either(context, "quiet")
    context.find_root().with_resource(_silence())


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _either(context: click.Context, asked: str) -> None:
    if context.meta.setdefault(_TALK, asked) != asked:
        raise click.UsageError("-v and -q contradict each other: give one of them.", context)
